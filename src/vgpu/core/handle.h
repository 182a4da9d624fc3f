#pragma once

#include <memory>

namespace vlmtrain::vgpu {

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
