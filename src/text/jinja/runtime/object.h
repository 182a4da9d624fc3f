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

/// The arguments of a call, in their order.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keyword;
};

/// The parameters of a callable.
struct Parameters {
  std::string_view names;  ///< separated by spaces; "*": any arguments
  int num_required = 0;    ///< the first so many parameters have no default
};

/// The arguments of a call, assigned to parameters. Refers to `callee_name` and `arguments`, which
/// must outlive it.
class BoundArguments {
 public:
  /// Throws EvaluationError that names `callee_name` for missing, duplicate, unknown or too many
  /// arguments.
  BoundArguments(std::string_view callee_name, const Parameters& parameters, const Arguments& arguments);

  const Arguments& arguments() const { return *arguments_; }
  /// Returns the argument of parameter `index`, or null if it is missing.
  const Value* operator[](size_t index) const { return index < values_.size() ? values_[index] : nullptr; }
  /// Returns the argument, or null if it is missing or None.
  const Value* value_or_null(size_t index) const;
  /// Each returns the argument converted, or `fallback` if it is missing. integer() throws
  /// EvaluationError for other types.
  bool boolean(size_t index, bool fallback) const;
  int64_t integer(size_t index, int64_t fallback) const;
  /// Returns the text, or null if it is missing or None. Throws EvaluationError for other types.
  const Text* text(size_t index) const;
  /// Returns the text. Throws EvaluationError if it is missing or None, and for other types.
  const Text& required_text(size_t index) const;

 private:
  std::string_view callee_name_;
  const Arguments* arguments_;
  std::vector<const Value*> values_;
};

/// The inputs of a render other than its variables.
struct RenderSettings {
  /// The time that strftime_now formats: "2026-11-22" or "2026-11-22T10:30:00". Empty: strftime_now
  /// fails.
  std::string now;
};

/// The state of one render that callables share.
struct Context {
  const RenderSettings& settings;
  Budget budget;
  /// Objects that may refer to each other in a cycle. The evaluator releases their values at the
  /// end of the render.
  std::vector<std::shared_ptr<Object>> retained_objects;
};

/// A value with behavior: a callable, a namespace or a loop.
class Object {
 public:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;

  /// Returns the name of the type in Python or Jinja2.
  virtual std::string_view type_name() const = 0;
  /// Returns the attribute `name`, or nothing.
  virtual std::optional<Value> attribute(std::string_view /*name*/) { return std::nullopt; }
  virtual bool is_callable() const { return false; }
  /// Calls the object. Throws EvaluationError if it is not callable.
  virtual Value call(Context& context, const Arguments& arguments);
  /// Moves out all values that the object holds, which breaks reference cycles.
  virtual std::vector<Value> release_values() { return {}; }

  int depth = 0;  ///< depth of the values that it holds; 0 for objects in Context::retained_objects
};

/// The result of namespace().
class Namespace : public Object {
 public:
  std::string_view type_name() const override { return "Namespace"; }
  std::optional<Value> attribute(std::string_view name) override;
  /// Sets an attribute. Throws EvaluationError for names that begin with an underscore.
  void set(std::string_view name, Value value);
  std::vector<Value> release_values() override;

 private:
  std::vector<std::pair<std::string, Value>> attributes_;
};

/// A function of the interpreter, or a method bound to a value.
class Function : public Object {
 public:
  using Body = Value (*)(Context&, const Value& self, const BoundArguments&);
  Function(std::string_view name, Parameters parameters, Body body, Value self = {})
      : name_(name), parameters_(parameters), body_(body), self_(std::move(self)) {
    depth = get_container_depth(self_.depth());
  }
  std::string_view type_name() const override { return "function"; }
  bool is_callable() const override { return true; }
  Value call(Context& context, const Arguments& arguments) override;

 private:
  std::string_view name_;
  Parameters parameters_;
  Body body_;
  Value self_;
};

/// An entry in a table of filters, tests, functions or methods.
struct Builtin {
  std::string_view name;
  Parameters parameters;
  Function::Body body;
};

/// Each returns the methods of a type; list_methods() those of tuples as well.
std::span<const Builtin> text_methods();
std::span<const Builtin> dict_methods();
std::span<const Builtin> list_methods();

/// Returns `value.name`: an attribute, else the item of that name, else undefined. Throws
/// EvaluationError for undefined values and unsupported methods.
Value get_attribute(const Value& value, std::string_view name);

/// Returns `value[key]`: an item, else the attribute of that name, else undefined. Throws as
/// get_attribute().
Value get_item(const Value& value, const Value& key, Budget& budget);

/// Returns `value[begin:end:step]`, each of which may be None.
Value get_slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget);

/// Returns the item at `path`, the argument `attribute` of filters: "a.0.b" is item b of item 0 of
/// item a. A number is a path of one item; None is the value itself.
Value get_path(const Value& value, const Value& path, Budget& budget);

/// Returns the method `name` of a text, list, tuple or dict, bound to it, or nothing if Python has
/// none. Returns undefined for methods that Jinja2's sandbox hides, such as list.append. Throws
/// EvaluationError for unsupported methods.
std::optional<Value> find_bound_method(const Value& value, std::string_view name);

/// Returns whether `name` is a method of Python's str, list or dict that no type supports here.
bool is_unsupported_method(std::string_view name);

}  // namespace vlmtrain::text::jinja
