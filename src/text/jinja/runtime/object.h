#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/arguments.h"
#include "text/jinja/runtime/budget.h"
#include "text/jinja/runtime/value.h"

namespace vlmtrain::text::jinja {

struct RenderSettings;

/// What one render has for all that is called in it.
struct Context {
  const RenderSettings& settings;
  Budget budget;
  /// Objects that could hold each other in a circle: they are emptied when the render ends.
  std::vector<std::shared_ptr<Object>> retained_objects;
};

/// A value that is no data: what can be called, namespaces, loops.
class Object {
 public:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;

  virtual std::string_view type_name() const = 0;
  virtual std::optional<Value> attribute(std::string_view /*name*/) { return std::nullopt; }
  virtual bool is_callable() const { return false; }
  virtual Value call(Context& context, const Arguments& arguments);
  /// Gives up what it holds.
  virtual std::vector<Value> release_values() { return {}; }

  int depth = 0;  ///< of what it holds; 0 for what is kept by the context
};

/// What namespace() gives.
class Namespace : public Object {
 public:
  std::string_view type_name() const override { return "Namespace"; }
  std::optional<Value> attribute(std::string_view name) override;
  void set(std::string_view name, Value value);
  std::vector<Value> release_values() override;

 private:
  std::vector<std::pair<std::string, Value>> attributes_;
};

/// A function of the interpreter's own, or a method of a value.
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

}  // namespace vlmtrain::text::jinja
