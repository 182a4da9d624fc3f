#pragma once

#include <memory>

#include "text/aligned_text.h"
#include "text/tokenizer/json_node.h"

namespace vlmtrain::text {

/// Rewrites a text before it is split. Thread-safe.
class Normalizer {
 public:
  Normalizer() = default;
  Normalizer(const Normalizer&) = delete;
  Normalizer& operator=(const Normalizer&) = delete;
  virtual ~Normalizer() = default;

  virtual void apply(AlignedText& text) const = 0;
};

/// The normalizer of tokenizer.json that `node` describes: NFC, Prepend, Replace or Sequence.
std::unique_ptr<Normalizer> make_normalizer(const JsonNode& node);

}  // namespace vlmtrain::text
