#pragma once

#include <ATen/core/ivalue.h>

#include <utility>

namespace vlmtrain::nn {

/// A holder of a C++ value for the context of an autograd Function, which stores only tensors and
/// IValues. Wrap it with c10::IValue::make_capsule().
template <class T>
struct ValueCapsule : torch::CustomClassHolder {
  explicit ValueCapsule(T initial) : value(std::move(initial)) {}
  T value;
};

}  // namespace vlmtrain::nn
