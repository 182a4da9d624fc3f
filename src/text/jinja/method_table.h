#pragma once

#include <span>

#include "text/jinja/object.h"

namespace vlmtrain::text::jinja {

struct Method {
  std::string_view name;
  Parameters parameters;
  Function::Body body;
};

std::span<const Method> methods_of_texts();
std::span<const Method> methods_of_dicts();
std::span<const Method> methods_of_lists();  // and tuples

}  // namespace vlmtrain::text::jinja
