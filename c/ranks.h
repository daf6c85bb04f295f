// c/ranks.h — what an attune_shares is
#pragma once

#include <attune/c.h>
#include <attune/ranks.h>

struct attune_shares {
  attune::Shares shares;
};
