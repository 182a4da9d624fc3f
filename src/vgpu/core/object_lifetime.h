#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace vlmtrain::vgpu {

/// The one value of its type, made at the first call and never destroyed: LibTorch registers kernels before main and
/// still frees memory while the process exits, in an order that nobody controls.
template <class T>
T& leaky_singleton() {
  alignas(T) static std::byte storage[sizeof(T)];
  static T* const value = new (storage) T;
  return *value;
}

/// Hands an object to a C interface, which owns it until it gives it back to take_handle().
template <class Handle, class Object>
Handle make_handle(std::unique_ptr<Object> object) {
  return reinterpret_cast<Handle>(object.release());
}

template <class Object, class Handle>
std::unique_ptr<Object> take_handle(Handle handle) {
  return std::unique_ptr<Object>(reinterpret_cast<Object*>(handle));
}

template <class Object, class Handle>
Object& get_object(Handle handle) {
  return *reinterpret_cast<Object*>(handle);
}

}  // namespace vlmtrain::vgpu
