#include <algorithm>

#include "models/processing/conversation_processor.h"
#include "vlmtrain/base/error.h"

// Shrinking of samples longer than data.max_length: images first, then video frames, down to the
// family's minimum. It depends on sizes only, so that process_headers() and process() give the same
// result.

namespace vlmtrain::models {

namespace {

/// Returns the highest pixel limit of `range` for which fits() is true; nothing if it is false for
/// the minimum. REQUIRES: if fits() is true for a limit, it is true for all lower limits.
template <class Fits>
std::optional<int64_t> bisect_highest_pixel_limit(const ShrinkRange& range, const Fits& fits) {
  if (!fits(range.min_pixels)) return std::nullopt;
  int64_t lower = range.min_pixels / range.step, upper = image::kMaxImagePixels / range.step + 1;
  while (upper - lower > 1) {
    const int64_t middle = lower + (upper - lower) / 2;
    (fits(middle * range.step) ? lower : upper) = middle;
  }
  return lower * range.step;
}

}  // namespace

int64_t ConversationProcessor::count_tokens(const std::vector<Medium>& media, const PixelLimits& limits) const {
  int64_t tokens = 0;
  for (const Medium& medium : media) {
    const bool is_video = medium.kind == data::MediaKind::kVideo;
    tokens +=
        is_video ? count_video_tokens(medium.video->info(), limits.frame) : count_tokens(medium.size, limits.image);
  }
  return tokens;
}

std::optional<PixelLimits> ConversationProcessor::find_lowest_pixel_limits(const std::vector<Medium>& media) const {
  PixelLimits lowest_limits;
  for (const Medium& medium : media) {
    const auto range = get_shrink_range(medium.kind);
    if (!range) return std::nullopt;
    (medium.kind == data::MediaKind::kVideo ? lowest_limits.frame : lowest_limits.image) = range->min_pixels;
  }
  return media.empty() ? std::nullopt : std::optional{lowest_limits};
}

std::optional<PixelLimits> ConversationProcessor::find_highest_pixel_limits(const std::vector<Medium>& media,
                                                                            const PixelLimits& lowest_limits,
                                                                            int64_t token_budget) const {
  const auto fits = [&](const PixelLimits& limits) { return count_tokens(media, limits) <= token_budget; };
  if (lowest_limits.image) {
    const auto image_pixel_limit =
        bisect_highest_pixel_limit(*get_shrink_range(data::MediaKind::kImage),
                                   [&](int64_t pixels) { return fits({.image = pixels, .frame = {}}); });
    if (image_pixel_limit) return PixelLimits{.image = image_pixel_limit, .frame = {}};
  }
  if (!lowest_limits.frame) return std::nullopt;
  const auto frame_pixel_limit =
      bisect_highest_pixel_limit(*get_shrink_range(data::MediaKind::kVideo),
                                 [&](int64_t pixels) { return fits({.image = lowest_limits.image, .frame = pixels}); });
  return frame_pixel_limit ? std::optional{PixelLimits{.image = lowest_limits.image, .frame = frame_pixel_limit}}
                           : std::nullopt;
}

ConversationProcessor::SampleLayout ConversationProcessor::find_fitting_layout(const io::Record& record,
                                                                               const text::RenderedChat& chat,
                                                                               const std::vector<Medium>& media) const {
  const int64_t max_tokens = std::min(settings_.max_length, max_positions());
  const bool shrinks_media = settings_.on_too_long == data::LongSamplePolicy::kShrink;
  const auto lowest_limits = shrinks_media ? find_lowest_pixel_limits(media) : std::nullopt;
  // If the media alone exceed the limit, starts with the lowest limits, to avoid tokenizing a very
  // long text.
  const bool media_exceed_limit = lowest_limits && count_tokens(media, {}) > max_tokens;
  SampleLayout layout = lay_out_sample(record, chat, media, media_exceed_limit ? *lowest_limits : PixelLimits{});
  if (!media_exceed_limit && layout.tokens() <= max_tokens) return layout;
  if (!lowest_limits) throw_sample_too_long_error(record, layout.tokens(), std::nullopt);

  const int64_t text = layout.tokens() - count_tokens(media, layout.limits);
  data::ShrinkInfo shrunk{.tokens = text + count_tokens(media, {})};
  for (const Medium& medium : media)
    shrunk.pixels += lay_out_medium(medium, {}).pixel_rows * tower_input_format_.row.pixels();
  for (int64_t token_budget = max_tokens - text, excess = 1; excess > 0; token_budget -= excess) {
    const auto limits = find_highest_pixel_limits(media, *lowest_limits, token_budget);
    if (!limits) throw_sample_too_long_error(record, shrunk.tokens, text + count_tokens(media, *lowest_limits));
    layout = lay_out_sample(record, chat, media, *limits);
    // May be positive although the media fit their budget, since the tokenization of text next to
    // media depends on them.
    excess = layout.tokens() - max_tokens;
  }
  for (const MediaLayout& media_layout : layout.media_layouts)
    shrunk.pixels_after += media_layout.pixel_rows * tower_input_format_.row.pixels();
  shrunk.tokens_after = layout.tokens();
  shrunk.image_max_pixels = layout.limits.image.value_or(0);
  shrunk.frame_max_pixels = layout.limits.frame.value_or(0);
  layout.shrink_info = shrunk;
  return layout;
}

std::string ConversationProcessor::format_shortening_advice(const io::Record& record) const {
  const bool has_videos = !record.videos.empty();
  std::string image_hint;
  if (!record.images.empty() || !has_videos) {
    image_hint = get_shrink_range(data::MediaKind::kImage) ? "shrink the images with data.image_max_pixels"
                                                           : "remove images, which all have the same number of tokens";
  }
  if (!has_videos) return image_hint;
  return fmt::format("{}{}use fewer frames with data.video_max_frames", image_hint, image_hint.empty() ? "" : ", or ");
}

void ConversationProcessor::throw_sample_too_long_error(const io::Record& record, int64_t tokens,
                                                        std::optional<int64_t> min_tokens) const {
  const int64_t lowest_token_count = min_tokens.value_or(tokens);
  const auto message = [&] {
    if (lowest_token_count <= settings_.max_length) return describe_position_overflow(record.id, lowest_token_count);
    if (record.images.empty() && record.videos.empty()) {
      return fmt::format("sample {} has {} tokens, more than data.max_length={}; raise it, or shorten its text",
                         record.id, tokens, settings_.max_length);
    }
    if (!min_tokens) {
      return fmt::format("sample {} has {} tokens, more than data.max_length={}; raise it, or {}", record.id, tokens,
                         settings_.max_length, format_shortening_advice(record));
    }
    return fmt::format(
        "sample {} has {} tokens, and {} with its images at their minimum size, more than data.max_length={}; raise "
        "it, or remove images, or frames with data.video_max_frames",
        record.id, tokens, lowest_token_count, settings_.max_length);
  };
  throw data::SampleTooLongError(tokens, message(), settings_.on_too_long == data::LongSamplePolicy::kDrop);
}

}  // namespace vlmtrain::models
