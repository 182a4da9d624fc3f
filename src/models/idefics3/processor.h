#pragma once

#include <string>
#include <vector>

#include "models/idefics3/config.h"
#include "models/idefics3/image_processor.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models::idefics3 {

/// Idefics3Processor of transformers: each image becomes its tiles in the text,
/// `<fake_token_around_image><row_r_col_c>` and the image tokens of a tile for each cell, a line break after each row,
/// then the whole picture as `<global-img>`; one tile alone is the whole picture.
class Processor final : public models::Processor {
 public:
  Processor(Config config, ImageProcessor images, text::Tokenizer tokenizer, ProcessorSettings settings);

  data::Sample process(const io::Record& record, int64_t index) const override;
  data::Sample process_prompt(const io::Record& record, int64_t index) const override;
  const text::Tokenizer& tokenizer() const override { return tokenizer_; }
  int64_t end_of_turn_id() const override { return end_of_turn_id_; }

 private:
  data::Sample make_sample(const io::Record& record, int64_t index, const text::RenderedChat& chat) const;
  std::string image_text(const TileGrid& grid) const;
  std::vector<std::filesystem::path> image_files(const io::Record& record) const;

  Config config_;
  ImageProcessor images_;
  text::Tokenizer tokenizer_;
  ProcessorSettings settings_;
  const text::ChatTemplate* template_;
  int64_t end_of_turn_id_;
};

}  // namespace vlmtrain::models::idefics3
