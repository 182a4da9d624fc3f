#pragma once

#include <string>
#include <vector>

#include "models/idefics3/config.h"
#include "models/idefics3/image_processor.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models::idefics3 {

/// Idefics3Processor of transformers: each image becomes its tiles in the text (models/idefics3/image_text.h).
class Processor final : public models::Processor {
 public:
  Processor(Config config, ImageProcessor images, text::Tokenizer tokenizer, ProcessorSettings settings);

  data::Sample process(const io::Record& record, int64_t index) const override;
  data::Sample process_prompt(const io::Record& record, int64_t index) const override;
  data::Sample outline(const io::Record& record, int64_t index) const override;
  const text::Tokenizer& tokenizer() const override { return tokenizer_; }
  int64_t end_of_turn_id() const override { return end_of_turn_id_; }

 private:
  /// All but the pixels, from the images' sizes.
  data::Sample lay_out(const io::Record& record, int64_t index, const text::RenderedChat& chat) const;
  data::Sample with_pixels(data::Sample outline, const io::Record& record) const;
  std::vector<std::filesystem::path> image_files(const io::Record& record) const;

  Config config_;
  ImageProcessor images_;
  text::Tokenizer tokenizer_;
  ProcessorSettings settings_;
  const text::ChatTemplate* template_;
  int64_t end_of_turn_id_;
};

}  // namespace vlmtrain::models::idefics3
