#pragma once

#include <ATen/core/ivalue.h>

#include <utility>

namespace vlmtrain::nn {

/// Brings a value that is no tensor through an autograd Function, whose context holds tensors and IValues.
template <class T>
struct ValueCapsule : torch::CustomClassHolder {
  explicit ValueCapsule(T initial) : value(std::move(initial)) {}
  T value;
};

}  // namespace vlmtrain::nn
