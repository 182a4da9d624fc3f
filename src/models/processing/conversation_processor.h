#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/media/mask_input.h"
#include "models/media/media_layout.h"
#include "models/media/media_opener.h"
#include "models/processing/chat_encoder.h"
#include "models/processing/length_fitter.h"
#include "models/processing/object_writer.h"
#include "vlmtrain/models/box_format.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {

/// The parts of a ConversationProcessor that differ between families.
struct ProcessorParts {
  std::unique_ptr<const ChatEncoder> encoder;
  MediaReaders readers{};
  TowerInputFormat input{};
  /// Set for families that predict masks; other families ignore the masks of records.
  std::optional<MaskInputSettings> masks = std::nullopt;
  /// As in LengthLimits; set for models that cannot process longer samples.
  int64_t max_positions = std::numeric_limits<int64_t>::max();
  std::string position_description{};
  BoxFormat boxes{};  ///< text of boxes in the family's training data
};

/// The processor of all families: opens the media, fits their sizes to data.max_length, tokenizes
/// the conversation, and reads the pixels. Thread-safe.
class ConversationProcessor final : public Processor {
 public:
  ConversationProcessor(ProcessorParts parts, const ProcessorSettings& settings);

  data::Sample process(const io::Record& record, int64_t index) const override;
  data::Sample process_augmented(const io::Record& record, int64_t index, uint64_t seed) const override;
  data::Sample process_prompt(const io::Record& record, int64_t index) const override;
  data::Sample process_prompt_headers(const io::Record& record, int64_t index) const override;
  data::Sample process_headers(const io::Record& record, int64_t index) const override;
  const text::Tokenizer& tokenizer() const override { return encoder_->tokenizer(); }
  int64_t end_of_turn_id() const override { return encoder_->end_of_turn_id(); }
  const text::ChatTemplate& chat_template() const override { return encoder_->chat_template(); }
  int64_t max_positions() const override { return fitter_.limits().max_positions; }
  text::RenderedChat render(const io::Record& record, bool as_prompt) const override;
  WrittenRecord write_objects(const io::Record& record) const override;
  std::vector<MediaPreview> preview_media(const io::Record& record, const data::Sample& sample) const override;
  bool predicts_masks() const override { return masks_.has_value(); }
  std::vector<at::Tensor> load_masks(const io::Record& record) const override;
  std::optional<data::Sample> make_mask_prompt(const io::Record& record, const data::Sample& prompt,
                                               const std::vector<int64_t>& answer) const override;

 private:
  /// A record whose media are open and whose tokens are known.
  struct OpenedRecord {
    text::RenderedChat chat;
    MediaList media;
    std::unique_ptr<ObjectWriter> objects;  ///< null if the record has no names and boxes
    SampleLayout layout;
  };

  /// Returns the rendered chat, or the text of the document that the record is a window of.
  /// Boxes become tokens of `objects`; null: the record has no names and boxes.
  text::RenderedChat render_whole(const io::Record& record, bool as_prompt, const ObjectWriter* objects) const;
  OpenedRecord open(const io::Record& record, bool as_prompt) const;
  /// Writes the boxes of an opened record as `augmentation` moves them, and returns the augmentation
  /// to apply. Flip and rotation are omitted if they would move a box out of its image or change the
  /// number of tokens, on which packs and plans rely.
  image::Augmentation augment_objects(const io::Record& record, OpenedRecord& opened,
                                      const image::Augmentation& augmentation) const;
  /// Returns the sample with pixel_values and masks on the meta device. Throws data::SampleError if
  /// it exceeds the memory limit or if its text contains image tokens.
  data::Sample make_header_sample(const io::Record& record, int64_t index, const OpenedRecord& opened) const;
  /// Decodes the media and fills in the pixels and mask targets of a header sample.
  void read_pixels(const io::Record& record, OpenedRecord& opened, const image::Augmentation& augmentation,
                   data::Sample& sample) const;
  data::Sample process(const io::Record& record, int64_t index, bool as_prompt,
                       const image::Augmentation& augmentation) const;

  std::unique_ptr<const ChatEncoder> encoder_;
  MediaOpener opener_;
  LengthFitter fitter_;
  std::optional<MaskTargets> masks_;
  TowerInputFormat input_;
  image::AugmentSettings augment_;
  BoxFormat box_format_;
  data::BoxConversion box_conversion_;
  bool trains_on_last_answer_;
};

}  // namespace vlmtrain::models
