#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace vlmtrain::text::jinja {

/// What a call gives.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keyword;
};

/// What something that is called takes: the names of its parameters, between spaces, the first `required` of which have
/// to be given; or "*", whatever it is given.
struct Parameters {
  std::string_view names;
  int required = 0;
};

/// The arguments of a call in the order of the parameters.
class Bound {
 public:
  /// Throws Failure, in the name of `who`, for an argument too many, too few, twice or unknown.
  Bound(std::string_view who, const Parameters& parameters, const Arguments& arguments);

  const Arguments& all() const { return *arguments_; }
  /// Null where it was not given.
  const Value* operator[](size_t index) const { return index < values_.size() ? values_[index] : nullptr; }
  /// None is as good as not given.
  const Value* given(size_t index) const;
  bool flag(size_t index, bool fallback) const;
  int64_t whole(size_t index, int64_t fallback) const;
  /// Null where it was not given, or None.
  const Text* text(size_t index) const;
  const Text& needed_text(size_t index) const;

 private:
  std::string_view who_;
  const Arguments* arguments_;
  std::vector<const Value*> values_;
};

}  // namespace vlmtrain::text::jinja
