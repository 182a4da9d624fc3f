#pragma once

#include <span>

#include "text/jinja/runtime/object.h"

namespace vlmtrain::text::jinja {

struct Builtin {
  std::string_view name;
  Parameters parameters;
  Function::Body body;
};

std::span<const Builtin> text_methods();
std::span<const Builtin> dict_methods();
std::span<const Builtin> list_methods();  // and tuples

}  // namespace vlmtrain::text::jinja
