#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer/json_node.h"

namespace vlmtrain::text {

/// A decoder of tokenizer.json, which converts tokens to text. Immutable and thread-safe.
class Decoder {
 public:
  Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  virtual ~Decoder() = default;

  /// Rewrites the list of tokens in place, and may change its length. The decoded text is the
  /// concatenation of the list after the last decoder.
  virtual void decode_tokens(std::vector<std::string>& tokens) const = 0;
};

/// Returns the decoder that `node` describes: ByteFallback, ByteLevel, Fuse, Metaspace, Replace,
/// Strip or Sequence. Throws UserError (kBadData) for other types.
std::unique_ptr<Decoder> make_decoder(const JsonNode& node);

}  // namespace vlmtrain::text
