#pragma once

#include <memory>

#include "text/tokenizer/json_node.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::text {

/// Puts special tokens around an encoded text. Thread-safe.
class PostProcessor {
 public:
  PostProcessor() = default;
  PostProcessor(const PostProcessor&) = delete;
  PostProcessor& operator=(const PostProcessor&) = delete;
  virtual ~PostProcessor() = default;

  virtual void apply(Encoding& encoding) const = 0;
};

/// The post-processor of tokenizer.json that `node` describes: ByteLevel, TemplateProcessing or Sequence.
std::unique_ptr<PostProcessor> make_post_processor(const JsonNode& node);

}  // namespace vlmtrain::text
