#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "text/jinja/runtime/object.h"

namespace vlmtrain::text::jinja {

/// The names of a block, which hide those of the blocks around it.
struct Scope {
  explicit Scope(std::shared_ptr<Scope> enclosing) : parent(std::move(enclosing)) {}

  const Value* find(size_t name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
      for (const auto& [variable_name, value] : scope->variables) {
        if (variable_name == name) return &value;
      }
    }
    return nullptr;
  }

  void set(size_t name, Value value) {
    for (auto& [variable_name, stored_value] : variables) {
      if (variable_name == name) {
        stored_value = std::move(value);
        return;
      }
    }
    variables.emplace_back(name, std::move(value));
  }

  std::vector<std::pair<size_t, Value>> variables;
  std::shared_ptr<Scope> parent;
};

}  // namespace vlmtrain::text::jinja
