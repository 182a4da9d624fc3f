#include "models/internvl/processor.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/checkpoints/config_checks.h"
#include "models/media/medium.h"
#include "models/processing/conversation_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/media_preview.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models::internvl {

namespace {

/// Throws UserError for a tokenizer that does not match `config`. Tokenizers of InternVL 3 in
/// transformers' layout have one token more than the embedding has rows. It is the video
/// placeholder, which is replaced by text before tokenization.
void check_tokenizer(const text::Tokenizer& tokenizer, const Config& config) {
  check_token_id(tokenizer, kImageToken, "image_token_id", config.image_token_id);
  const int64_t rows = config.text.vocab_size;
  const bool has_video_placeholder =
      tokenizer.vocab_size() == rows + 1 && tokenizer.token_to_id(text::kVideoPlaceholder) == rows;
  if (!has_video_placeholder) check_vocabulary(tokenizer, rows);
}

}  // namespace

std::string format_image_text(int64_t tiles, int64_t image_tokens_per_tile) {
  std::string text = "<img>";
  for (int64_t i = 0; i < tiles * image_tokens_per_tile; ++i) text += kImageToken;
  return text + "</img>";
}

std::string format_video_text(int64_t frames, int64_t image_tokens_per_tile) {
  const std::string frame = format_image_text(1, image_tokens_per_tile);
  std::string text;
  for (int64_t i = 1; i <= frames; ++i) text += fmt::format("{}Frame{}: {}", i == 1 ? "" : "\n", i, frame);
  return text;
}

int64_t count_video_text_tokens(int64_t frames, int64_t image_tokens_per_tile, const std::filesystem::path& folder) {
  const auto tokenizer = folder / "tokenizer.json";
  if (std::filesystem::exists(tokenizer)) {
    return std::ssize(text::read_tokenizer(folder).encode(format_video_text(frames, image_tokens_per_tile)).ids);
  }
  constexpr int64_t kNumFrameMarkerTokens = 5;  // "Frame", ":", " ", "<img>", "</img>"
  int64_t tokens = frames * (kNumFrameMarkerTokens + image_tokens_per_tile) + frames - 1;
  for (int64_t i = 1; i <= frames; ++i) tokens += std::ssize(std::to_string(i));
  return tokens;
}

namespace {

class TileReader final : public ImageReader {
 public:
  TileReader(const ImageProcessor& image_processor, int64_t tokens_per_tile)
      : image_processor_(image_processor), tokens_per_tile_(tokens_per_tile) {}

  MediaLayout lay_out(image::ImageSize size, std::optional<int64_t> max_pixels) const override {
    const int64_t tiles = image_processor_.compute_grid(size, max_pixels).num_tiles();
    return {.text = format_image_text(tiles, tokens_per_tile_), .pixel_rows = tiles};
  }
  ImageView compute_view(image::ImageSize size, std::optional<int64_t> max_pixels) const override {
    const TileGrid grid = image_processor_.compute_grid(size, max_pixels);
    const int64_t side = image_processor_.tile_settings().side;
    return make_resized_view(size, {.height = grid.rows * side, .width = grid.columns * side});
  }
  at::Tensor preprocess(const at::Tensor& image, std::optional<int64_t> max_pixels) const override {
    return image_processor_.process(image, max_pixels);
  }
  std::vector<MediaPreview> preview(const at::Tensor& rows, const MediaLayout& layout, image::ImageSize size,
                                    std::optional<int64_t> max_pixels) const override {
    const TileGrid grid = image_processor_.compute_grid(size, max_pixels);
    if (grid.num_cells() == 1) return ImageReader::preview(rows, layout, size, max_pixels);
    return preview_cells_and_overview(rows, grid.rows, grid.columns);
  }
  std::optional<int64_t> count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const override {
    constexpr int64_t kNumMarkerTokens = 2;  // <img> and </img>
    return image_processor_.compute_grid(size, max_pixels).num_tiles() * tokens_per_tile_ + kNumMarkerTokens;
  }
  std::optional<ShrinkRange> get_shrink_range() const override {
    return make_tile_shrink_range(image_processor_.tile_settings().side);
  }

 private:
  ImageProcessor image_processor_;
  int64_t tokens_per_tile_;
};

class FrameReader final : public VideoReader {
 public:
  FrameReader(const VideoSettings& settings, const TileSettings& image_settings, int64_t tokens_per_tile)
      : settings_(settings), image_settings_(image_settings), tokens_per_tile_(tokens_per_tile) {}

  void check(const image::VideoInfo& /*info*/) const override {
    check_frame_normalization(image_settings_.normalization, settings_.tile.normalization);
  }
  MediaLayout lay_out(const image::VideoInfo& info, std::optional<int64_t> /*max_pixels*/) const override {
    const auto frames = std::ssize(settings_.sample_frame_indices(info));
    return {.text = format_video_text(frames, tokens_per_tile_), .pixel_rows = frames, .frames = frames};
  }
  at::Tensor preprocess(image::VideoFile& video, std::optional<int64_t> /*max_pixels*/) const override {
    const auto frames = settings_.sample_frame_indices(video.info());
    const int64_t side = settings_.tile.side;
    at::Tensor tiles = at::empty({std::ssize(frames), 3, side, side}, at::kByte);
    int64_t tile_index = 0;
    video.read_frames(frames, [&](const at::Tensor& frame) {
      tiles.select(0, tile_index++).copy_(image::resize_image(frame, side, side, settings_.tile.filter));
    });
    return tiles;
  }
  // Frames are one tile each and cannot shrink; only a sample's images do.
  std::optional<ShrinkRange> get_shrink_range() const override { return make_tile_shrink_range(image_settings_.side); }

 private:
  VideoSettings settings_;
  TileSettings image_settings_;
  int64_t tokens_per_tile_;
};

/// Rejects texts with tokens that the embedding lacks, such as a video placeholder of the tokenizer.
class Encoder final : public ChatEncoder {
 public:
  Encoder(const Config& config, text::Tokenizer tokenizer, text::ChatTemplate chat_template)
      : ChatEncoder(std::move(tokenizer), std::move(chat_template), {.image_token_id = config.image_token_id}),
        vocab_size_(config.text.vocab_size) {}

  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> media) const override {
    EncodedChat encoded_chat = ChatEncoder::encode(chat, media);
    const auto unknown_token_it =
        std::ranges::find_if(encoded_chat.token_ids, [&](int64_t id) { return id >= vocab_size_; });
    if (unknown_token_it != encoded_chat.token_ids.end()) {
      throw data::SampleError("tokens without an embedding",
                              fmt::format("the text has the token {}, which the model's vocabulary does not contain; "
                                          "remove it from the conversation",
                                          tokenizer().id_to_token(*unknown_token_it)));
    }
    return encoded_chat;
  }

 private:
  int64_t vocab_size_;
};

}  // namespace

std::unique_ptr<Processor> make_processor(const Config& config, const ImageProcessor& images,
                                          const VideoSettings& videos, text::Tokenizer tokenizer,
                                          text::ChatTemplate chat_template, const ProcessorSettings& settings) {
  auto encoder = std::make_unique<Encoder>(config, std::move(tokenizer), std::move(chat_template));
  check_tokenizer(encoder->tokenizer(), config);
  const int64_t tokens_per_tile = config.image_tokens_per_tile(), side = images.tile_settings().side;
  ProcessorParts parts{
      .encoder = std::move(encoder),
      .readers = {.images = std::make_unique<TileReader>(images, tokens_per_tile),
                  .videos = std::make_unique<FrameReader>(videos, images.tile_settings(), tokens_per_tile)},
      .input = {.row = {.height = side, .width = side}, .image_tokens = tokens_per_tile},
      .boxes = {.notation = CoordinateNotation::kNormalized1000,
                .box = "<box>[[{x1}, {y1}, {x2}, {y2}]]</box>",
                .point = "<box>[[{x1}, {y1}]]</box>",
                .name = "<ref>{name}</ref>"}};
  if (config.is_hard_limit) {
    parts.max_positions = config.text.max_positions;
    parts.position_description = fmt::format(
        "the model's positions (max_position_embeddings {}), beyond which its dynamic RoPE scaling "
        "changes all of them",
        config.text.max_positions);
  }
  return std::make_unique<ConversationProcessor>(std::move(parts), settings);
}

namespace {

using image::ImageSize;
using nlohmann::json;

/// Maximum of min_patches and max_patches. Checkpoints have at most 12; 1,024 keeps the search over
/// all grids cheap.
constexpr int64_t kMaxGridCells = 1 << 10;

int64_t read_tile_side(const PreprocessorConfig& file) {
  const json* size = file.find("size");
  if (size == nullptr) return 384;  // transformers' default
  const auto has_valid_side = [&](const char* key) {
    return size->contains(key) && size->at(key).is_number_integer() && size->at(key) > 0 &&
           size->at(key) <= kMaxImageSide;
  };
  const bool is_valid = size->is_object() && has_valid_side("height") && has_valid_side("width") &&
                        size->at("height") == size->at("width");
  if (!is_valid) {
    throw data_error("{}: size is {}; supported: {{\"height\": PIXELS, \"width\": PIXELS}} with two equal numbers",
                     file.name(), io::make_json_excerpt(*size));
  }
  return size->at("height").get<int64_t>();
}

/// Returns the number of tiles with a side of `side` pixels that `pixels` suffice for.
int64_t compute_max_tiles(int64_t pixels, int64_t side) {
  return pixels / (side * side);
}

}  // namespace

const std::set<std::string_view>& get_tile_config_keys() {
  static const std::set<std::string_view> keys{
      // supported
      "size", "resample", "image_mean", "image_std", "rescale_factor", "do_resize", "do_rescale", "do_normalize",
      "do_convert_rgb",
      // without effect on pixels
      "processor_class", "return_tensors", "data_format", "input_data_format", "device", "disable_grouping",
      "default_to_square", "_valid_processor_keys", "_processor_class", "image_seq_length", "crop_size",
      "model_input_names", "pad_size"};
  return keys;
}

TileSettings read_tile_settings(const PreprocessorConfig& file, const VisionConfig& vision) {
  for (const std::string_view key : {"do_resize", "do_rescale", "do_normalize", "do_convert_rgb"}) {
    file.check_key_is_true(key);
  }
  const TileSettings settings{.side = read_tile_side(file),
                              .filter = file.get_resample_filter(3),
                              .normalization = file.get_normalization(kClipMean, kClipStd)};
  if (settings.side != vision.image_size) {
    throw data_error(
        "{}: makes tiles of {} pixels (size), but config.json's vision tower needs {} (image_size); they must be equal",
        file.name(), settings.side, vision.image_size);
  }
  return settings;
}

ImageProcessorSettings read_image_settings(const std::filesystem::path& folder, const VisionConfig& vision) {
  const auto file = PreprocessorConfig::find_for_images(folder);
  if (!file) throw make_missing_image_config_error(folder);
  file->get_processor_type("GotOcr2ImageProcessor", {"GotOcr2ImageProcessor"});
  std::set<std::string_view> supported_keys = get_tile_config_keys();
  supported_keys.insert({// read here
                         "min_patches", "max_patches", "image_processor_type", "feature_extractor_type",
                         // without effect
                         "crop_to_patches"});
  file->reject_other_keys(supported_keys);
  const ImageProcessorSettings settings{.tile = read_tile_settings(*file, vision),
                                        .min_cells = file->value<int64_t>("min_patches", 1),
                                        .max_cells = file->value<int64_t>("max_patches", 12)};
  check_size(settings.max_cells, "max_patches", kMaxGridCells, file->name());
  check_size(settings.min_cells, "min_patches", settings.max_cells, file->name());
  return settings;
}

ImageProcessor::ImageProcessor(const ImageProcessorSettings& settings, std::optional<int64_t> max_pixels)
    : settings_(settings) {
  if (!max_pixels) return;
  const int64_t max_cells = compute_max_tiles(*max_pixels, tile_settings().side);
  if (max_cells < 1) {
    throw usage_error("{} is {}, but one tile of this model has {} pixels; raise it to that or more",
                      keys::data::kImageMaxPixels, *max_pixels, tile_settings().side * tile_settings().side);
  }
  settings_.max_cells = std::min(settings_.max_cells, max_cells);
}

TileGrid ImageProcessor::compute_grid(ImageSize size, std::optional<int64_t> max_pixels) const {
  int64_t max_cells = settings_.max_cells;
  if (max_pixels) max_cells = std::clamp<int64_t>(compute_max_tiles(*max_pixels, tile_settings().side), 1, max_cells);
  const double ratio = static_cast<double>(size.width) / static_cast<double>(size.height);
  const auto image_area = static_cast<double>(size.width * size.height);
  const auto tile_area = static_cast<double>(tile_settings().side * tile_settings().side);
  TileGrid best_grid;
  double smallest_ratio_difference = std::numeric_limits<double>::infinity();
  // The order of the grids matters (by cells, then by columns): a later grid replaces an equally
  // close one only if the image has more than half of its pixels.
  for (int64_t cells = std::min(settings_.min_cells, max_cells); cells <= max_cells; ++cells) {
    for (int64_t columns = 1; columns <= cells; ++columns) {
      if (cells % columns != 0) continue;
      const TileGrid grid{.rows = cells / columns, .columns = columns};
      const double ratio_difference = std::abs(ratio - static_cast<double>(columns) / static_cast<double>(grid.rows));
      const bool is_filled = image_area > 0.5 * tile_area * static_cast<double>(cells);
      if (ratio_difference < smallest_ratio_difference || (ratio_difference == smallest_ratio_difference && is_filled))
        best_grid = grid;
      smallest_ratio_difference = std::min(smallest_ratio_difference, ratio_difference);
    }
  }
  return best_grid;
}

at::Tensor ImageProcessor::process(const at::Tensor& image, std::optional<int64_t> max_pixels) const {
  VLMTRAIN_CHECK(image.scalar_type() == at::kByte && image.dim() == 3 && image.size(0) == 3,
                 "the image to split must be uint8 [3, height, width]");
  const TileGrid grid = compute_grid({image.size(1), image.size(2)}, max_pixels);
  const int64_t side = tile_settings().side;
  const auto resize_to_grid = [&](int64_t rows, int64_t columns) {
    return image::resize_image(image, rows * side, columns * side, tile_settings().filter);
  };
  at::Tensor tiles = at::empty({grid.num_tiles(), 3, side, side}, at::kByte);
  split_tiles(resize_to_grid(grid.rows, grid.columns), side, tiles.narrow(0, 0, grid.num_cells()));
  if (grid.num_cells() > 1) tiles.select(0, grid.num_cells()).copy_(resize_to_grid(1, 1));
  return tiles;
}

VideoSettings VideoSettings::read(const std::filesystem::path& folder, const VisionConfig& vision,
                                  const ProcessorSettings& settings) {
  const auto file = PreprocessorConfig::find_for_videos(folder);
  if (!file) {
    throw data_error("{}: has no video settings; copy the checkpoint's video_preprocessor_config.json there",
                     folder.string());
  }
  std::set<std::string_view> supported_keys = get_tile_config_keys();
  supported_keys.insert({// read here
                         "num_frames", "initial_shift", "video_processor_type",
                         // image keys, for a checkpoint without a video file
                         "min_patches", "max_patches", "crop_to_patches", "image_processor_type",
                         "feature_extractor_type",
                         // without effect: frames are always sampled at data.video_fps
                         "do_sample_frames", "fps", "return_metadata", "video_metadata"});
  file->reject_other_keys(supported_keys);
  VideoSettings result{.tile = read_tile_settings(*file, vision),
                       .num_frames = std::nullopt,
                       .initial_shift = file->value("initial_shift", true),
                       .sampling_fps = settings.video_fps,
                       .max_frames = settings.video_max_frames};
  if (file->find("num_frames") != nullptr) {
    result.num_frames = file->value<int64_t>("num_frames", 0);
    models::check_size(*result.num_frames, "num_frames", image::kMaxVideoFrames, file->name());
  }
  return result;
}

std::vector<int64_t> VideoSettings::sample_frame_indices(const image::VideoInfo& video) const {
  if (auto all_frames = list_preselected_frames(video, max_frames)) return *std::move(all_frames);
  const double fps = video.fps > 0 ? video.fps : sampling_fps;
  const auto total_frames = static_cast<double>(video.num_frames);
  // The cast rounds toward zero, as int() in transformers.
  const int64_t target_frames = video.is_frame_list ? max_frames
                                : num_frames
                                    ? *num_frames
                                    : static_cast<int64_t>(std::min(total_frames, total_frames / fps * sampling_fps));
  const int64_t count = std::clamp<int64_t>(target_frames, 1, std::min(max_frames, video.num_frames));
  const double sampling_interval = total_frames / static_cast<double>(count);
  // torch.arange in fp32, as in transformers, for equal rounding.
  const at::Tensor indices =
      at::arange(initial_shift ? sampling_interval / 2 : 0.0, total_frames, sampling_interval, at::kFloat)
          .to(at::kLong)
          .clamp_max_(video.num_frames - 1);
  return {indices.const_data_ptr<int64_t>(), indices.const_data_ptr<int64_t>() + indices.numel()};
}

}  // namespace vlmtrain::models::internvl
