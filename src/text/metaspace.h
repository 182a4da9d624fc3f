#pragma once

#include <string>

#include "text/tokenizer/json_node.h"

namespace vlmtrain::text {

/// The options of tokenizer.json's Metaspace, as pre-tokenizer and as decoder: words begin with a visible character
/// (U+2581) in place of the space.
struct MetaspaceOptions {
  enum class PrependScheme { kAlways, kFirst, kNever };

  std::string replacement;
  PrependScheme prepend_scheme = PrependScheme::kAlways;  ///< which texts get a replacement in front
  bool split = true;                                      ///< each word is a piece

  static MetaspaceOptions parse(const JsonNode& node);
};

}  // namespace vlmtrain::text
