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

/// The tokens and rows of pixels of one medium.
struct MediaLayout {
  std::string text;                       ///< replaces its placeholder in the rendered chat
  int64_t pixel_rows = 1;                 ///< rows in pixel_values
  std::optional<int64_t> image_tokens{};  ///< nullopt: pixel_rows · TowerInputFormat::image_tokens
  std::optional<data::PatchGrid> grid{};  ///< for towers that process images at native resolution
  float time_step = 1;                    ///< difference of time positions between two frames of a video
  data::MediaKind kind = data::MediaKind::kImage;
  int64_t frames = 0;        ///< sampled frames of a video
  int64_t modality = 0;      ///< the family's id of a volume's modality; 0: unknown
  int64_t decode_bytes = 0;  ///< as data::Sample::decode_bytes
};

/// A tokenized conversation.
struct EncodedChat {
  std::vector<int64_t> token_ids;
  std::vector<char> label_mask;                ///< for each token, whether it is in the loss
  std::vector<int64_t> image_token_positions;  ///< ascending positions that image features replace
};

/// The pixel limits that images of a too long sample may be shrunk to: multiples of `step` that are
/// at least `min_pixels`.
struct ShrinkRange {
  int64_t min_pixels = 0;  ///< of an image or video frame; `step` is in pixels, too
  int64_t step = 1;
};

/// Maximum numbers of pixels of each image and of each video frame of a sample; nullopt: the limit
/// of the settings.
struct PixelLimits {
  std::optional<int64_t> image;
  std::optional<int64_t> frame;
};

/// Returns the memory in bytes for decoding an image, or the frames of a video one by one, of the
/// given size. Throws UserError (kBadData) if it exceeds a quarter of `available_bytes`, the
/// available memory, since several threads decode and the model needs the rest.
int64_t check_decode_bytes(image::ImageSize size, data::MediaKind kind, int64_t available_bytes);

/// The common base of all processors: renders the chat, reads the media, counts and checks tokens.
/// Families override the conversion of media. Thread-safe if the overrides are. Overrides throw
/// UserError (kBadData) for unusable media, which is converted to data::SampleError with the
/// record's id.
class ConversationProcessor : public Processor {
 public:
  data::Sample process(const io::Record& record, int64_t index) const final;
  data::Sample process_augmented(const io::Record& record, int64_t index, uint64_t seed) const final;
  data::Sample process_prompt(const io::Record& record, int64_t index) const final;
  data::Sample process_prompt_headers(const io::Record& record, int64_t index) const final;
  data::Sample process_headers(const io::Record& record, int64_t index) const final;
  const text::Tokenizer& tokenizer() const final { return tokenizer_; }
  int64_t end_of_turn_id() const final { return end_of_turn_id_; }
  const text::ChatTemplate& chat_template() const final { return chat_template_; }
  text::RenderedChat render(const io::Record& record, bool as_prompt) const final;
  std::vector<MediaPreview> preview_media(const io::Record& record, const data::Sample& sample) const final;
  bool predicts_masks() const final { return mask_input_.has_value(); }
  std::vector<at::Tensor> load_masks(const io::Record& record) const final;
  std::optional<data::Sample> make_mask_prompt(const io::Record& record, const data::Sample& prompt,
                                               const std::vector<int64_t>& answer) const final;

 protected:
  /// The rows of pixels that a family's tower takes.
  struct TowerInputFormat {
    data::PixelRowShape row;
    int64_t image_tokens = 0;  ///< per row, unless MediaLayout::image_tokens is set
  };

  /// Creates the processor. `masks` is set for families that predict masks; other families ignore
  /// the masks of records.
  ConversationProcessor(text::Tokenizer tokenizer, text::ChatTemplate chat_template, ProcessorSettings settings,
                        TowerInputFormat input, std::optional<MaskInputSettings> masks = std::nullopt);

  /// Returns the layout of an image. `max_pixels` is an additional limit that shrinks the images of
  /// too long samples; nullopt: only the settings limit the size.
  virtual MediaLayout lay_out_image(image::ImageSize size, std::optional<int64_t> max_pixels) const = 0;
  /// Returns the rows of pixels of a decoded image, uint8 [3, height, width]. Shape and dtype are
  /// those of TowerInputFormat::row, the number of rows that of lay_out_image().
  virtual at::Tensor preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const = 0;
  /// Returns previews of `rows`, which preprocess_image() or preprocess_video() made from a medium.
  /// The default shows each row as an image.
  virtual std::vector<MediaPreview> preview_images(const at::Tensor& rows, const MediaLayout& layout,
                                                   image::ImageSize size, std::optional<int64_t> max_pixels) const;
  /// Throws UserError (kBadData) for sizes of images or frames that the family does not take.
  virtual void check_size(image::ImageSize /*size*/) const {}
  /// Returns the number of text and image tokens of lay_out_image() without building its text.
  /// Called only if get_shrink_range() has a value for images.
  virtual int64_t count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const;
  /// Returns the range of pixel limits for images or for video frames; nothing if shrinking does
  /// not save tokens.
  virtual std::optional<ShrinkRange> get_shrink_range(data::MediaKind /*kind*/) const { return std::nullopt; }
  /// Returns the message for a sample with more tokens than max_positions(). Override it together
  /// with max_positions().
  virtual std::string describe_position_overflow(const std::string& /*id*/, int64_t /*tokens*/) const { return {}; }
  /// Tokenizes a chat. `images` are the layouts of all media, in the order of their placeholders.
  virtual EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const = 0;
  /// Returns whether the family takes videos. If not, records with videos are rejected, and the
  /// other video methods are not called.
  virtual bool supports_videos() const { return false; }
  /// Throws UserError (kBadData) if the video processor's settings in the checkpoint are not
  /// supported. Called for each video, so that other data sets can be used with such a checkpoint.
  virtual void check_video(const image::VideoInfo& /*info*/) const {}
  /// Return the layout, the rows of pixels and the number of tokens of a video, as for images.
  /// `max_pixels` is a limit per frame.
  virtual MediaLayout lay_out_video(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const;
  virtual at::Tensor preprocess_video(image::VideoFile& video, std::optional<int64_t> max_pixels) const;
  virtual int64_t count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const;
  /// Returns whether the family takes volumes. If not, the other volume methods are not called.
  virtual bool supports_volumes() const { return false; }
  /// Return the layout and the rows of pixels of a volume.
  virtual MediaLayout lay_out_volume(const image::VolumeInfo& info) const;
  virtual at::Tensor preprocess_volume(const io::MediaRef& file) const;
  /// Returns the family's id of a modality that a record names; 0 if unknown. Throws UserError
  /// (kBadData) if the family requires a known modality.
  virtual int64_t find_modality_id(const std::string& /*modality*/) const { return 0; }
  /// Returns the maximum number of volumes of a sample; nullopt: no limit.
  virtual std::optional<int64_t> max_volumes() const { return std::nullopt; }
  /// Returns whether the family takes images.
  virtual bool supports_images() const { return true; }
  /// Returns data::Sample::position_ids; empty unless the model has positions on several axes.
  virtual std::vector<int64_t> make_position_ids(const EncodedChat& chat, std::span<const MediaLayout> images) const;

 private:
  /// A medium of a record, or one slice of a volume.
  struct Medium {
    const io::MediaRef* file;
    data::MediaKind kind;
    image::ImageSize size{};                    ///< of an image, slice or frame; set by read_media_headers()
    std::optional<image::VideoFile> video{};    ///< opened by read_media_headers(), so that it is opened only once
    std::optional<image::VolumeInfo> volume{};  ///< set by read_media_headers()
    std::optional<size_t> slice{};              ///< index of the slice of a volume that is used as images
    int64_t decode_bytes = 0;                   ///< set by read_media_headers()
  };
  /// The layouts of a sample's media.
  struct SampleLayout {
    PixelLimits limits;
    std::vector<MediaLayout> media_layouts;
    EncodedChat chat;
    std::optional<data::ShrinkInfo> shrink_info{};  ///< set if media were shrunk

    int64_t tokens() const { return std::ssize(chat.token_ids); }
  };
  /// Returns the record's media in the order of their placeholders in the rendered chat. Throws
  /// data::SampleError for media that the family or the settings do not allow, or that the chat
  /// lacks.
  std::vector<Medium> collect_media(const io::Record& record, const text::RenderedChat& chat) const;
  /// Return the sample of a rendered chat: process_chat() with pixels, process_headers() with a
  /// pixel_values tensor on the meta device.
  data::Sample process_chat(const io::Record& record, int64_t index, const text::RenderedChat& chat,
                            const image::Augmentation& augmentation = {}) const;
  data::Sample process_headers(const io::Record& record, int64_t index, const text::RenderedChat& chat) const;
  /// Reads the sizes of media from file headers. Throws data::SampleError, which names the file.
  void read_media_headers(const io::Record& record, std::vector<Medium>& media) const;
  /// Returns the layout of a medium. Throws UserError, which names the file.
  MediaLayout lay_out_medium(const Medium& medium, const PixelLimits& limits) const;
  /// Returns the number of tokens of all images and videos at the given limits.
  int64_t count_tokens(const std::vector<Medium>& media, const PixelLimits& limits) const;
  /// Returns the layouts of all media at the given limits, and the tokenized chat.
  SampleLayout lay_out_sample(const io::Record& record, const text::RenderedChat& chat,
                              const std::vector<Medium>& media, const PixelLimits& limits) const;
  /// Returns the layout that fits data.max_length and removes the fewest pixels. Shrinks images
  /// first, then video frames. Throws data::SampleTooLongError if none fits.
  SampleLayout find_fitting_layout(const io::Record& record, const text::RenderedChat& chat,
                                   const std::vector<Medium>& media) const;
  /// Returns the lowest limits; nothing if there are no media or a medium cannot be shrunk.
  std::optional<PixelLimits> find_lowest_pixel_limits(const std::vector<Medium>& media) const;
  /// Returns the highest limits at which the media have at most `token_budget` tokens; nothing if
  /// they have more at `lowest_limits`.
  std::optional<PixelLimits> find_highest_pixel_limits(const std::vector<Medium>& media,
                                                       const PixelLimits& lowest_limits, int64_t token_budget) const;
  /// Returns advice on shortening a record.
  std::string format_shortening_advice(const io::Record& record) const;
  /// Throws data::SampleTooLongError for a sample of `tokens` tokens. `min_tokens` is the
  /// number at the lowest limits, if its media can be shrunk.
  [[noreturn]] void throw_sample_too_long_error(const io::Record& record, int64_t tokens,
                                                std::optional<int64_t> min_tokens) const;
  /// Returns the sample with pixel_values on the meta device. Throws data::SampleError if it
  /// exceeds the memory limit or if its text contains image tokens.
  data::Sample make_sample(const io::Record& record, int64_t index, const SampleLayout& layout) const;
  /// A volume whose slices are used as images.
  struct CachedVolume {
    const io::MediaRef* file = nullptr;
    std::vector<at::Tensor> slices{};
  };
  /// The pixels of a medium: rows for the tower, and the mask encoder's input if it is an image
  /// with masks.
  struct MediumPixels {
    at::Tensor rows;
    at::Tensor mask_image;  ///< uint8 [3, side, side]; else undefined
  };
  /// Decodes and preprocesses a medium. Reads the slices of a volume once into `cached_volume`.
  /// Appends notices about its pixels to `notices`.
  MediumPixels preprocess_medium(Medium& medium, const PixelLimits& limits, const image::Augmentation& augmentation,
                                 bool needs_mask_image, CachedVolume& cached_volume,
                                 std::vector<io::Notice>& notices) const;
  /// Adds notices about lists and folders of frames of which only some are used.
  static void add_frame_notices(const std::vector<Medium>& media, const SampleLayout& layout, data::Sample& sample);
  /// Returns the sizes of the images, without other media, in order.
  static std::vector<image::ImageSize> collect_image_sizes(const std::vector<Medium>& media);
  /// Adds masks without values to a sample of make_sample() if the family predicts masks.
  data::Sample add_empty_masks(data::Sample header_sample, const io::Record& record,
                               const std::vector<Medium>& media) const;
  /// Decodes the media and fills in the pixels and mask targets of a sample.
  data::Sample add_pixels(data::Sample header_sample, const io::Record& record, std::vector<Medium>& media,
                          const PixelLimits& limits, const image::Augmentation& augmentation) const;
  /// Throw data::SampleError for kinds and numbers of media that the family or the settings do not
  /// allow.
  void check_supported_media(const io::Record& record) const;
  void check_volumes(const io::Record& record) const;
  bool uses_volume_slices() const { return settings_.volume.input_form == data::VolumeInputForm::kSlices; }
  /// Returns the number of images that each image placeholder stands for: 1, or the number of
  /// slices of a volume.
  std::vector<int64_t> count_images_per_placeholder(const io::Record& record) const;
  /// Throws data::SampleError if a record has more images, slices included, than the settings
  /// allow.
  void check_num_images(const io::Record& record, const std::vector<int64_t>& images_per_placeholder) const;
  /// Returns the record's turns, with a placeholder for each slice of a volume.
  std::vector<text::Turn> make_turns(const io::Record& record) const;
  /// Reads the header of a volume or of a volume used as slices. Throws UserError if it exceeds the
  /// memory limit or if it is an unexpected series.
  void read_volume_header(Medium& medium) const;
  /// Returns the medium's slice as an image, uint8 [3, height, width], from `cached_volume`, which
  /// it fills if it has another volume.
  at::Tensor read_slice(const Medium& medium, CachedVolume& cached_volume, std::vector<io::Notice>& notices) const;
  /// Returns a preview of each row, a preprocessed volume.
  static std::vector<MediaPreview> preview_volumes(const at::Tensor& rows);
  /// Throws data::SampleError if a sample with `pixel_bytes` of pixels needs more than its share of
  /// host memory.
  void check_sample_memory(const data::Sample& sample, int64_t pixel_bytes) const;

  text::Tokenizer tokenizer_;
  ProcessorSettings settings_;
  text::ChatTemplate chat_template_;
  TowerInputFormat tower_input_format_;
  std::optional<MaskInputSettings> mask_input_;
  int64_t end_of_turn_id_;
};

/// Returns the id of a token. Throws UserError (kBadData) if the tokenizer does not have it.
int64_t find_token_id(const text::Tokenizer& tokenizer, std::string_view token);

/// Throws UserError (kBadData) if the tokenizer has more tokens than the embedding has rows.
void check_vocabulary(const text::Tokenizer& tokenizer, int64_t vocab_size);

/// Expands the placeholders of `chat` to the texts of `images`, the layouts of its media, and
/// tokenizes it. `add_special_tokens` is as in text::Tokenizer::encode(). `video_token_id` is set
/// for families with another token for video features.
EncodedChat encode_with_media(const text::Tokenizer& tokenizer, const text::RenderedChat& chat,
                              std::span<const MediaLayout> images, int64_t image_token_id, bool add_special_tokens,
                              std::optional<int64_t> video_token_id = std::nullopt);

/// Reads `folder`/tokenizer.json. Throws UserError (kBadData) if it is missing or invalid.
text::Tokenizer load_tokenizer(const std::filesystem::path& folder);

}  // namespace vlmtrain::models
