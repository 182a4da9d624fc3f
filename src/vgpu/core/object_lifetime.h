#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace vlmtrain::vgpu {

/// Returns the singleton of type T. The first call creates it; it is never destroyed, because
/// LibTorch registers kernels before main() and frees memory during exit, in an unspecified order.
/// Thread-safe.
template <class T>
T& get_leaky_singleton() {
  alignas(T) static std::byte storage[sizeof(T)];
  static T* const value = new (storage) T;
  return *value;
}

/// Returns a C handle that owns the object until take_ownership() is called.
template <class Handle, class Object>
Handle make_handle(std::unique_ptr<Object> object) {
  return reinterpret_cast<Handle>(object.release());
}

/// Returns the owned object of a handle from make_handle(). The handle is invalid afterwards.
template <class Object, class Handle>
std::unique_ptr<Object> take_ownership(Handle handle) {
  return std::unique_ptr<Object>(reinterpret_cast<Object*>(handle));
}

/// Returns a reference to the object that a handle from make_handle() owns. `Object` must be the
/// type that was passed to make_handle().
template <class Object, class Handle>
Object& get_object(Handle handle) {
  return *reinterpret_cast<Object*>(handle);
}

}  // namespace vlmtrain::vgpu
