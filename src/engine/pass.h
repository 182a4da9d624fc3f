#pragma once

#include <exception>

#include "engine/backward_thread.h"
#include "vlmtrain/memory/shortage.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::engine {

/// Calls `pass`, which is a pass over the model (nn::BlockUnsharder). Where memory runs out in it the pass is ended, so
/// that other processes can go on with theirs; what ends the process needs no end.
template <class Pass>
void run_pass(const nn::ParameterStore& store, const nn::PassSpec& spec, const Pass& pass) {
  store.begin_pass(spec);
  try {
    pass();
  } catch (const std::exception& error) {
    if (!memory::detect_out_of_memory(error)) throw;
    wait_for_backward_thread(store.options().device());
    store.end_pass();
    throw;
  }
  store.end_pass();
}

}  // namespace vlmtrain::engine
