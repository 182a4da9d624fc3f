#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/processing/mask_input.h"
#include "vlmtrain/image/augment.h"
#include "vlmtrain/image/decode.h"
#include "vlmtrain/image/video.h"
#include "vlmtrain/image/volume.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models {

/// What one medium becomes in the model's text and in its tower.
struct MediaLayout {
  std::string text;  ///< in its place in the rendered chat
  int64_t pixel_rows = 1;
  std::optional<int64_t> image_tokens{};  ///< nothing: those of its rows
  std::optional<data::PatchGrid> grid{};  ///< where the tower takes patches of native resolution
  float time_step = 1;                    ///< positions from one frame of a video to the next
  data::MediaKind kind = data::MediaKind::kImage;
  int64_t frames = 0;        ///< of a video, as many as are looked at
  int64_t modality = 0;      ///< of a volume, as the family numbers them
  int64_t decode_bytes = 0;  ///< as Sample::decode_bytes
};

/// Token ids of a conversation, where its answers are, and where the image features go.
struct EncodedChat {
  std::vector<int64_t> token_ids;
  std::vector<char> is_label;
  std::vector<int64_t> image_token_positions;
};

/// Where pictures of a sample that is too long may go: to any multiple of `step` pixels down to `least`.
struct ShrinkRange {
  int64_t min_pixels = 0;
  int64_t step = 1;
};

/// The most pixels that each picture and each frame of a sample's videos may have; nothing: what the settings say.
struct PixelLimits {
  std::optional<int64_t> image;
  std::optional<int64_t> frame;
};

/// What decoding a picture, or the frames of a video one by one, of this size takes. data_error where that is more than
/// a quarter of `host_bytes`, which this process may have: several threads decode, and the rest is the model's.
int64_t check_decoding(image::ImageSize size, data::MediaKind kind, int64_t host_bytes);

/// What the processors of all families do alike: render the chat, read the images, count and check. A family says what
/// an image becomes. Thread-safe as long as the virtual methods are.
class ConversationProcessor : public Processor {
 public:
  data::Sample process(const io::Record& record, int64_t index) const final;
  data::Sample process_augmented(const io::Record& record, int64_t index, uint64_t seed) const final;
  data::Sample process_prompt(const io::Record& record, int64_t index) const final;
  data::Sample outline_prompt(const io::Record& record, int64_t index) const final;
  data::Sample process_headers(const io::Record& record, int64_t index) const final;
  const text::Tokenizer& tokenizer() const final { return tokenizer_; }
  int64_t end_of_turn_id() const final { return end_of_turn_id_; }
  const text::ChatTemplate& chat_template() const final { return template_; }
  text::RenderedChat render(const io::Record& record, bool as_prompt) const final;
  std::vector<MediaPreview> preview_media(const io::Record& record, const data::Sample& sample) const final;
  bool predicts_masks() const final { return mask_input_.has_value(); }
  std::vector<at::Tensor> load_masks(const io::Record& record) const final;
  std::optional<data::Sample> make_mask_prompt(const io::Record& record, const data::Sample& prompt,
                                               const std::vector<int64_t>& answer) const final;

 protected:
  /// What a family's tower takes.
  struct TowerInput {
    data::PixelRow row;
    int64_t image_tokens = 0;  ///< of each row, where the MediaLayout does not say how many it has
  };

  /// `masks`: of a family that draws them; of another, masks of records are passed over.
  ConversationProcessor(text::Tokenizer tokenizer, text::ChatTemplate chat_template, ProcessorSettings settings,
                        TowerInput input, std::optional<MaskInput> masks = std::nullopt);

  /// `max_pixels`: what the picture is limited to so that its sample fits data.max_length, beside what the settings
  /// say; nothing: by those alone.
  virtual MediaLayout layout_image(image::ImageSize size, std::optional<int64_t> max_pixels) const = 0;
  /// Of the decoded picture: rows as TowerInput says, as many as layout_image() of its size.
  virtual at::Tensor preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const = 0;
  /// What the rows of a medium show, as preprocess_image() laid them for a picture of this size or preprocess_video()
  /// for such frames: pixels and tiles. By itself each row is a picture.
  virtual std::vector<MediaPreview> preview_images(const at::Tensor& rows, const MediaLayout& layout,
                                                   image::ImageSize size, std::optional<int64_t> max_pixels) const;
  /// data_error for a picture or frame of a size that the family does not take. What follows is asked of others only.
  virtual void check_size(image::ImageSize /*size*/) const {}
  /// How many tokens layout_image() of such a picture has in the text, image tokens and others.
  virtual int64_t count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const;
  /// Nothing: all pictures become alike, whatever their size.
  virtual std::optional<ShrinkRange> shrink_range(data::MediaKind /*kind*/) const { return std::nullopt; }
  /// What is said of a sample with more tokens than max_positions().
  virtual std::string describe_position_overflow(const std::string& /*id*/, int64_t /*tokens*/) const { return {}; }
  /// `images`: of images and videos, in the order of their marks.
  virtual EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const = 0;
  /// The same of a video, of a family that takes them; of another, a record with one is refused.
  virtual bool supports_videos() const { return false; }
  /// Throws UserError (kBadData) for a video where the checkpoint's files ask for what is not followed. What follows is
  /// asked of others only.
  virtual void check_video(const image::VideoInfo& /*info*/) const {}
  virtual MediaLayout layout_video(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const;
  virtual at::Tensor preprocess_video(image::VideoFile& video, std::optional<int64_t> max_pixels) const;
  virtual int64_t count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const;
  /// The same of a volume, of a family that takes them.
  virtual bool supports_volumes() const { return false; }
  virtual MediaLayout layout_volume(const image::VolumeInfo& info) const;
  virtual at::Tensor preprocess_volume(const io::MediaRef& file) const;
  /// The family's number of a modality as the data calls it; 0: of one that it does not know. Throws UserError
  /// (kBadData) where the family has to know it.
  virtual int64_t find_modality_id(const std::string& /*modality*/) const { return 0; }
  /// Volumes of a sample at most; nothing: any number.
  virtual std::optional<int64_t> max_volumes() const { return std::nullopt; }
  /// Whether pictures are taken, too.
  virtual bool supports_images() const { return true; }
  /// data::Sample::position_ids; none unless the model has positions on several axes.
  virtual std::vector<int64_t> make_position_ids(const EncodedChat& chat, std::span<const MediaLayout> images) const;

 private:
  struct Medium {
    const io::MediaRef* file;
    data::MediaKind kind;
    image::ImageSize size{};                    ///< once measured: of a picture
    std::optional<image::VideoFile> video{};    ///< once measured: a video is opened once
    std::optional<image::VolumeInfo> volume{};  ///< once measured: of a volume
    std::optional<size_t> slice{};              ///< of a volume that is seen as pictures, which of these
    int64_t decoding_bytes = 0;                 ///< once measured
  };
  /// How the media of a sample are laid out.
  struct SampleLayout {
    PixelLimits limits;
    std::vector<MediaLayout> media_layouts;
    EncodedChat chat;
    std::optional<data::ShrinkInfo> shrunk{};

    int64_t tokens() const { return std::ssize(chat.token_ids); }
  };
  /// The record's images and videos in the order of their marks in the rendered chat.
  std::vector<Medium> collect_media(const io::Record& record, const text::RenderedChat& chat) const;
  data::Sample process_chat(const io::Record& record, int64_t index, const text::RenderedChat& chat,
                    const image::Augmentation& augmentation = {}) const;
  data::Sample process_headers(const io::Record& record, int64_t index, const text::RenderedChat& chat) const;
  /// Reads the sizes of media; an error names the file. Below, all but the pixels follows from these sizes.
  void measure(const io::Record& record, std::vector<Medium>& media) const;
  MediaLayout layout_medium(const Medium& medium, const PixelLimits& limits) const;
  int64_t count_tokens(const std::vector<Medium>& media, const PixelLimits& limits) const;
  SampleLayout layout_sample(const io::Record& record, const text::RenderedChat& chat, const std::vector<Medium>& media,
                             const PixelLimits& limits) const;
  /// The layout whose media lose as few pixels as it takes to fit data.max_length, pictures before frames. Throws
  /// data::SampleTooLongError where it fits with none.
  SampleLayout fit_layout(const io::Record& record, const text::RenderedChat& chat,
                          const std::vector<Medium>& media) const;
  /// The lowest limits; nothing: no medium can lose pixels.
  std::optional<PixelLimits> find_floor(const std::vector<Medium>& media) const;
  /// The highest limits under which the media have no more than `token_budget` tokens; nothing: not at the floor
  /// either.
  std::optional<PixelLimits> find_limits(const std::vector<Medium>& media, const PixelLimits& floor,
                                         int64_t token_budget) const;
  /// What makes a record of fewer tokens.
  std::string describe_shortening(const io::Record& record) const;
  [[noreturn]] void throw_too_long(const io::Record& record, int64_t tokens,
                                   std::optional<int64_t> tokens_at_floor) const;
  data::Sample make_sample(const io::Record& record, int64_t index, const SampleLayout& layout) const;
  /// A volume whose slices are taken one by one.
  struct SlicedVolume {
    const io::MediaRef* file = nullptr;
    std::vector<at::Tensor> slices{};
  };
  /// Of a video its rows, of a picture those and what the mask encoder takes, if that is wanted.
  struct MediumPixels {
    at::Tensor rows;
    at::Tensor mask_image;  ///< uint8 [3, side, side]
  };
  /// `notices` gets what is to be reported of the pixels.
  MediumPixels preprocess_medium(Medium& medium, const PixelLimits& limits, const image::Augmentation& augmentation,
                                 bool with_mask_image, SlicedVolume& cached_volume,
                                 std::vector<io::Notice>& notices) const;
  /// Of lists and folders of frames of which some are left out.
  static void add_frame_notices(const std::vector<Medium>& media, const SampleLayout& layout, data::Sample& sample);
  /// Of pictures alone, measured, in the order of the record.
  static std::vector<image::ImageSize> collect_image_sizes(const std::vector<Medium>& media);
  /// The sample that make_sample() made, with masks where the family draws them.
  data::Sample add_masks(data::Sample header_sample, const io::Record& record, const std::vector<Medium>& media) const;
  data::Sample add_pixels(data::Sample header_sample, const io::Record& record, std::vector<Medium>& media,
                          const PixelLimits& limits, const image::Augmentation& augmentation) const;
  void check_media(const io::Record& record) const;
  void check_volumes(const io::Record& record) const;
  bool uses_slices() const { return settings_.volume.use == data::VolumeUse::kSlices; }
  /// How many pictures stand at the mark of each of the record's images; 1 but of volumes that are seen as slices.
  std::vector<int64_t> count_images_per_mark(const io::Record& record) const;
  /// Refuses a record that has, with slices of volumes, more pictures than settings allow.
  void check_images(const io::Record& record, const std::vector<int64_t>& images_per_mark) const;
  /// The record's, with a mark for each slice of a volume.
  std::vector<text::Turn> make_turns(const io::Record& record) const;
  void measure_volume(Medium& medium) const;
  at::Tensor read_slice(const Medium& medium, SlicedVolume& cached_volume, std::vector<io::Notice>& notices) const;
  /// To look at.
  static std::vector<MediaPreview> preview_volumes(const at::Tensor& rows);
  void check_memory(const data::Sample& sample, int64_t pixel_bytes) const;

  text::Tokenizer tokenizer_;
  ProcessorSettings settings_;
  text::ChatTemplate template_;
  TowerInput tower_input_;
  std::optional<MaskInput> mask_input_;
  int64_t end_of_turn_id_;
};

/// The id of a token that the family needs. Throws UserError (kBadData) where the tokenizer has none.
int64_t find_token_id(const text::Tokenizer& tokenizer, std::string_view token);

/// Throws UserError (kBadData) where the tokenizer has more tokens than the embedding has rows.
void check_vocabulary(const text::Tokenizer& tokenizer, int64_t vocab_size);

/// Puts each image's text in its place and tokenizes the whole. `add_special_tokens` as text::Tokenizer::encode.
/// `video_token_id`: the token of videos' features, where a family has one.
EncodedChat encode_with_images(const text::Tokenizer& tokenizer, const text::RenderedChat& chat,
                               std::span<const MediaLayout> images, int64_t image_token_id, bool add_special_tokens,
                               std::optional<int64_t> video_token_id = std::nullopt);

/// Reads `folder`/tokenizer.json. Throws UserError (kBadData) that says how to make it where there is only a
/// tokenizer.model.
text::Tokenizer load_tokenizer(const std::filesystem::path& folder);

}  // namespace vlmtrain::models
