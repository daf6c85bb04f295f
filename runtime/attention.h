// runtime/attention.h — a call from its checks to its engine, with news of how far it is
#pragma once

#include <attune/attention.h>

#include "runtime/oracle.h"

namespace attune::runtime {

/// What Attention::run and Attention::backward do. An Error without a place of its own gets the line of the call.
void run(const Attention& attention, const Forward& call, Line at, const Progress& progress = {});
void run(const Attention& attention, const Backward& call, Line at, const Progress& progress = {});

}  // namespace attune::runtime
