#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace vlmtrain::vgpu {

/// Returns the singleton of type T, which the first call creates and nothing destroys. LibTorch
/// registers kernels before main() and frees memory during exit, in an unspecified order.
/// Thread-safe.
template <class T>
T& leaky_singleton() {
  alignas(T) static std::byte storage[sizeof(T)];
  static T* const value = new (storage) T;
  return *value;
}

/// Transfers ownership of an object to a C handle, until take_handle().
template <class Handle, class Object>
Handle make_handle(std::unique_ptr<Object> object) {
  return reinterpret_cast<Handle>(object.release());
}

/// Takes back the ownership of a handle's object.
template <class Object, class Handle>
std::unique_ptr<Object> take_handle(Handle handle) {
  return std::unique_ptr<Object>(reinterpret_cast<Object*>(handle));
}

/// Returns the object that a handle from make_handle() owns.
template <class Object, class Handle>
Object& get_object(Handle handle) {
  return *reinterpret_cast<Object*>(handle);
}

}  // namespace vlmtrain::vgpu
