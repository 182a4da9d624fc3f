#pragma once

#include <memory>
#include <vector>

#include "text/aligned_text.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/pattern.h"

namespace vlmtrain::text {

/// A text cut into pieces that the model encodes one by one; bytes between pieces are dropped.
struct PreTokenized {
  AlignedText text;
  std::vector<Range> pieces;  ///< of text.bytes, from left to right, none empty
};

/// Cuts pieces into smaller ones and may rewrite them. Thread-safe.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;
  virtual ~PreTokenizer() = default;

  virtual void apply(PreTokenized& text) const = 0;
};

/// The pre-tokenizer of tokenizer.json that `node` describes: ByteLevel, Digits, Metaspace, Split or Sequence.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonNode& node);

}  // namespace vlmtrain::text
