#pragma once

#include <exception>

#include "engine/backward_thread.h"
#include "vlmtrain/memory/shortage.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::engine {

/// Calls `act`, which is a pass over the model (nn::BlockWeights). Where memory runs out in it the pass is ended, so
/// that other processes can go on with theirs; what ends the process needs no end.
template <class Act>
void in_pass(const nn::ParameterStore& store, const nn::PassShape& shape, const Act& act) {
  store.begin_pass(shape);
  try {
    act();
  } catch (const std::exception& error) {
    if (!memory::shortage_in(error)) throw;
    wait_for_backward_thread(store.options().device());
    store.end_pass();
    throw;
  }
  store.end_pass();
}

}  // namespace vlmtrain::engine
