#include "text/metaspace.h"

namespace vlmtrain::text {
namespace {

using Scheme = MetaspaceOptions::PrependScheme;

Scheme parse_scheme(const JsonNode& node) {
  const std::string name = node.string();
  if (name == "always") return Scheme::kAlways;
  if (name == "first") return Scheme::kFirst;
  if (name == "never") return Scheme::kNever;
  throw node.error("is \"{}\", which is not supported; supported are always, first, never", name);
}

}  // namespace

MetaspaceOptions MetaspaceOptions::parse(const JsonNode& node) {
  MetaspaceOptions options;
  options.replacement = node.get_string("replacement");
  if (options.replacement.empty()) throw node.error("must have a replacement that is not empty");
  if (node.has("prepend_scheme")) options.prepend_scheme = parse_scheme(node.at("prepend_scheme"));
  // Files from before prepend_scheme have add_prefix_space.
  if (!node.get_bool("add_prefix_space", true)) options.prepend_scheme = Scheme::kNever;
  options.split = node.get_bool("split", true);
  return options;
}

}  // namespace vlmtrain::text
