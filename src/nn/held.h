#pragma once

#include <ATen/core/ivalue.h>

#include <utility>

namespace vlmtrain::nn {

/// Brings a value that is no tensor through an autograd Function, whose context holds tensors and IValues.
template <class T>
struct Held : torch::CustomClassHolder {
  explicit Held(T held) : value(std::move(held)) {}
  T value;
};

}  // namespace vlmtrain::nn
