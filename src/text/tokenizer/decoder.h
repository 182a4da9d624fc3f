#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer/json_node.h"

namespace vlmtrain::text {

/// Turns tokens back into text. Thread-safe.
class Decoder {
 public:
  Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  virtual ~Decoder() = default;

  /// Rewrites the list of tokens; what is left at the end is joined to the text.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

/// The decoder of tokenizer.json that `node` describes: ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Strip or
/// Sequence.
std::unique_ptr<Decoder> make_decoder(const JsonNode& node);

}  // namespace vlmtrain::text
