#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/runtime/value.h"

namespace vlmtrain::text::jinja {

/// What a call gives.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keyword;
};

/// What something that is called takes: the names of its parameters, between spaces, the first `num_required` of which
/// have to be given; or "*", whatever it is given.
struct Parameters {
  std::string_view names;
  int num_required = 0;
};

/// The arguments of a call in the order of the parameters.
class BoundArguments {
 public:
  /// Throws Failure, in the name of `callee_name`, for an argument too many, too few, twice or unknown.
  BoundArguments(std::string_view callee_name, const Parameters& parameters, const Arguments& arguments);

  const Arguments& arguments() const { return *arguments_; }
  /// Null where it was not given.
  const Value* operator[](size_t index) const { return index < values_.size() ? values_[index] : nullptr; }
  /// None is as good as not given.
  const Value* value_or_null(size_t index) const;
  bool boolean(size_t index, bool fallback) const;
  int64_t integer(size_t index, int64_t fallback) const;
  /// Null where it was not given, or None.
  const Text* text(size_t index) const;
  const Text& required_text(size_t index) const;

 private:
  std::string_view callee_name_;
  const Arguments* arguments_;
  std::vector<const Value*> values_;
};

}  // namespace vlmtrain::text::jinja
