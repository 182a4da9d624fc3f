#pragma once

#include <memory>

namespace vlmtrain::vgpu {

/// Hands an object to a C interface, which owns it until it gives it back to owned().
template <class Handle, class Object>
Handle handed_out(std::unique_ptr<Object> object) {
  return reinterpret_cast<Handle>(object.release());
}

template <class Object, class Handle>
std::unique_ptr<Object> owned(Handle handle) {
  return std::unique_ptr<Object>(reinterpret_cast<Object*>(handle));
}

template <class Object, class Handle>
Object& object_of(Handle handle) {
  return *reinterpret_cast<Object*>(handle);
}

}  // namespace vlmtrain::vgpu
