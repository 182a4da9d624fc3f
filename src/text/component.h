#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "text/tokenizer/json_node.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::text {

/// A kind of component that tokenizer.json can name in a key `type`, and how it is made.
template <class Component>
struct ComponentFactory {
  std::string_view type;
  std::unique_ptr<Component> (*make)(const JsonNode&);
};

/// Makes the component that `node` describes, or throws an error that lists the kinds there are.
template <class Component>
std::unique_ptr<Component> make_component(const JsonNode& node,
                                          std::span<const ComponentFactory<Component>> factories) {
  const std::string type = node.get_string("type");
  std::string supported;
  for (const auto& factory : factories) {
    if (factory.type == type) return factory.make(node);
    supported += (supported.empty() ? "" : ", ") + std::string(factory.type);
  }
  throw node.error("has the type \"{}\", which is not supported; supported are {}", make_excerpt(type), supported);
}

/// The component under `key`, or none where the file says null.
template <class Component>
std::unique_ptr<Component> make_optional(const JsonNode& root, const std::string& key,
                                         std::unique_ptr<Component> (*make)(const JsonNode&)) {
  return root.has(key) ? make(root.at(key)) : nullptr;
}

}  // namespace vlmtrain::text
