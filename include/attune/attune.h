// include/attune/attune.h — the one include a user needs
#pragma once

#include <attune/append.h>
#include <attune/attention.h>
#include <attune/error.h>
#include <attune/expr.h>
#include <attune/mods.h>
#include <attune/offline.h>
#include <attune/ranks.h>
#include <attune/tensor.h>
#include <attune/text.h>
#include <attune/watch.h>
