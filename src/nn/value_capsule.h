#pragma once

#include <ATen/core/ivalue.h>

#include <utility>

namespace vlmtrain::nn {

/// A holder that carries a C++ value through an autograd Function, whose context stores tensors and
/// IValues only.
template <class T>
struct ValueCapsule : torch::CustomClassHolder {
  explicit ValueCapsule(T initial) : value(std::move(initial)) {}
  T value;
};

}  // namespace vlmtrain::nn
