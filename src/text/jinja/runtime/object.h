#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/runtime/budget.h"
#include "text/jinja/runtime/value.h"

namespace vlmtrain::text::jinja {

/// The evaluated arguments of a call, in the order of the call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keyword;
};

/// The parameters of a callable.
struct ParameterList {
  /// Names in order, separated by spaces. Empty: no parameters. "*": any positional and keyword
  /// arguments, which the callee reads with BoundArguments::arguments().
  std::string_view names;
  int num_required_parameters = 0;  ///< number of leading parameters without a default
};

/// The arguments of a call, assigned to the parameters of the callee. `callee_name` and `arguments`
/// must outlive this object.
class BoundArguments {
 public:
  /// Throws EvaluationError with `callee_name` in its message for missing, duplicate, unknown or
  /// too many arguments.
  BoundArguments(std::string_view callee_name, const ParameterList& parameters, const Arguments& arguments);

  /// Returns all arguments as passed.
  const Arguments& arguments() const { return *arguments_; }
  /// Returns the argument of parameter `index`, or null if it was not passed.
  const Value* operator[](size_t index) const { return index < values_.size() ? values_[index] : nullptr; }
  /// Returns the argument of parameter `index`, or null if it is missing or None.
  const Value* value_or_null(size_t index) const;
  /// Each returns the argument as this type, or `fallback` if it is missing. boolean() accepts
  /// every type, as Python's bool(). integer() accepts ints and bools and throws EvaluationError
  /// for other types.
  bool boolean(size_t index, bool fallback) const;
  int64_t integer(size_t index, int64_t fallback) const;
  /// Returns the text, or null if it is missing or None. Throws EvaluationError for other types.
  const TextValue* text(size_t index) const;
  /// Returns the text. Throws EvaluationError if it is missing or None, and for other types.
  const TextValue& required_text(size_t index) const;

 private:
  std::string_view callee_name_;
  const Arguments* arguments_;
  std::vector<const Value*> values_;
};

/// The inputs of a render other than its variables.
struct RenderSettings {
  /// The time that strftime_now formats: "2026-11-22" or "2026-11-22T10:30:00". If it is empty,
  /// strftime_now throws.
  std::string current_time;
};

/// The state of one render, which all callables share.
struct RenderContext {
  const RenderSettings& settings;
  RenderBudget budget;
  /// Objects that may refer to each other in a cycle. The evaluator releases their values at the
  /// end of the render.
  std::vector<std::shared_ptr<Object>> retained_objects;
};

/// Returns `text` as a value and charges its size to the budget.
Value make_text_result(RenderContext& context, TextWithOrigins text);

/// A value with behavior: a function, a macro, a namespace, a loop, a cycler or a joiner.
class Object {
 public:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;

  /// Returns the name of the type in Python or Jinja2.
  virtual std::string_view type_name() const = 0;
  /// Returns the attribute `name`, or nothing if there is no such attribute.
  virtual std::optional<Value> find_attribute(std::string_view /*name*/) { return std::nullopt; }
  virtual bool is_callable() const { return false; }
  /// Calls the object. Throws EvaluationError if it is not callable.
  virtual Value call(RenderContext& context, const Arguments& arguments);
  /// Moves out all values that the object holds, which breaks reference cycles.
  virtual std::vector<Value> release_values() { return {}; }

  /// Depth of nested containers, see Value::depth(). 0 for objects in
  /// RenderContext::retained_objects, whose values may change.
  int depth = 0;
};

/// The result of namespace().
class Namespace : public Object {
 public:
  std::string_view type_name() const override { return "Namespace"; }
  std::optional<Value> find_attribute(std::string_view name) override;
  /// Sets an attribute. Throws EvaluationError for names that begin with an underscore.
  void set(std::string_view name, Value value);
  std::vector<Value> release_values() override;

 private:
  std::vector<std::pair<std::string, Value>> attributes_;
};

/// A built-in function, or a built-in method bound to the value `self`. `name` must outlive it.
class Function : public Object {
 public:
  /// The implementation. `self` is the value to which a method is bound, else undefined.
  using Implementation = Value (*)(RenderContext&, const Value& self, const BoundArguments&);
  Function(std::string_view name, ParameterList parameters, Implementation implementation, Value self = {})
      : name_(name), parameters_(parameters), implementation_(implementation), self_(std::move(self)) {
    depth = compute_container_depth(self_.depth());
  }
  std::string_view type_name() const override { return "function"; }
  bool is_callable() const override { return true; }
  Value call(RenderContext& context, const Arguments& arguments) override;

 private:
  std::string_view name_;
  ParameterList parameters_;
  Implementation implementation_;
  Value self_;
};

/// An entry in a table of filters, tests, functions or methods.
struct Builtin {
  std::string_view name;
  ParameterList parameters;
  Function::Implementation implementation;
};

/// Each returns the methods of a type. get_list_methods() is for lists, tuples and ranges.
std::span<const Builtin> get_text_methods();
std::span<const Builtin> get_dict_methods();
std::span<const Builtin> get_list_methods();

/// Returns `value.name` as Jinja2: the attribute `name`, else the item with the key `name`, else
/// undefined. Throws EvaluationError for undefined values and unsupported methods.
Value get_attribute(const Value& value, std::string_view name);

/// Returns `value[key]` as Jinja2: the item `key`, else the attribute of that name, else undefined.
/// Throws EvaluationError for undefined values and unsupported methods.
Value get_item(const Value& value, const Value& key, RenderBudget& budget);

/// Returns `value[begin:end:step]` as Python. `begin`, `end` and `step` may be None. Throws
/// EvaluationError for other types than integers and for values that cannot be sliced.
Value get_slice(const Value& value, const Value& begin, const Value& end, const Value& step, RenderBudget& budget);

/// Returns the item at `path`, which is the argument `attribute` of filters: "a.0.b" is item b of
/// item 0 of item a of `value`. An integer selects one item; None selects `value` itself.
Value get_item_at_path(const Value& value, const Value& path, RenderBudget& budget);

/// Returns the method `name` of a text, list, tuple or dict, bound to `value`. Returns nothing if
/// Python has no such method. Returns undefined for methods that Jinja2's sandbox hides, such as
/// list.append. Throws EvaluationError for unsupported methods.
std::optional<Value> find_bound_method(const Value& value, std::string_view name);

/// Returns whether `name` is a method of Python's str or dict that is not supported, so that calls
/// can be rejected during parsing.
bool is_unsupported_method(std::string_view name);

}  // namespace vlmtrain::text::jinja
