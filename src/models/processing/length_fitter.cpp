#include "models/processing/length_fitter.h"

#include <algorithm>

#include "models/media/media_opener.h"
#include "models/processing/chat_encoder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"

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

/// Lays out the media of one sample at several pixel limits.
class MediaShrinker {
 public:
  MediaShrinker(const MediaList& media, const ChatEncoder& encoder) : media_(media), encoder_(encoder) {
    for (const auto& medium : media) {
      auto& range = medium->kind() == data::MediaKind::kVideo ? frame_range_ : image_range_;
      const auto medium_range = medium->get_shrink_range();
      can_shrink_all_ = can_shrink_all_ && medium_range.has_value();
      if (medium_range) range = medium_range;
    }
  }

  /// Returns the lowest limits; nothing if there are no media or a medium cannot be shrunk.
  std::optional<PixelLimits> find_lowest_limits() const {
    if (media_.empty() || !can_shrink_all_) return std::nullopt;
    PixelLimits limits;
    if (image_range_) limits.image = image_range_->min_pixels;
    if (frame_range_) limits.frame = frame_range_->min_pixels;
    return limits;
  }

  /// Returns the highest limits at which the media have at most `token_budget` tokens; nothing if
  /// they have more at the lowest limits. Shrinks images first. REQUIRES: all media can be shrunk.
  std::optional<PixelLimits> find_highest_limits(int64_t token_budget) const {
    const auto fits = [&](const PixelLimits& limits) { return count_tokens(limits) <= token_budget; };
    PixelLimits limits;
    if (image_range_) {
      limits.image = bisect_highest_pixel_limit(*image_range_,
                                                [&](int64_t pixels) { return fits({.image = pixels, .frame = {}}); });
      if (limits.image) return limits;
      limits.image = image_range_->min_pixels;
    }
    if (!frame_range_) return std::nullopt;
    limits.frame = bisect_highest_pixel_limit(
        *frame_range_, [&](int64_t pixels) { return fits({.image = limits.image, .frame = pixels}); });
    return limits.frame ? std::optional(limits) : std::nullopt;
  }

  /// Returns the number of tokens of all media at the given limits.
  int64_t count_tokens(const PixelLimits& limits) const {
    int64_t tokens = 0;
    for (const auto& medium : media_) {
      const auto count = medium->count_tokens(limits);
      tokens += count ? *count : encoder_.count_tokens(medium->lay_out(limits).text);
    }
    return tokens;
  }

 private:
  const MediaList& media_;
  const ChatEncoder& encoder_;
  std::optional<ShrinkRange> image_range_, frame_range_;
  bool can_shrink_all_ = true;
};

/// Returns the layouts of all media at the given limits, and the tokenized chat.
SampleLayout lay_out_sample(const io::Record& record, const text::RenderedChat& chat, const MediaList& media,
                            const ObjectWriter* objects, const ChatEncoder& encoder, const PixelLimits& limits) {
  SampleLayout layout{.limits = limits, .media_layouts = {}, .chat = {}};
  layout.media_layouts.reserve(media.size());
  for (const auto& medium : media) {
    layout.media_layouts.push_back(
        rethrow_medium_errors(record, medium->kind(), [&] { return medium->lay_out(limits); }));
  }
  if (objects != nullptr) layout.written_chat = objects->write(chat, limits);
  layout.chat = encode_record(record, layout.written_chat ? *layout.written_chat : chat, layout.media_layouts, encoder);
  return layout;
}

int64_t count_pixels(const std::vector<MediaLayout>& layouts, int64_t pixels_per_row) {
  int64_t rows = 0;
  for (const MediaLayout& layout : layouts) rows += layout.pixel_rows;
  return rows * pixels_per_row;
}

/// Returns advice on shortening a record whose media are not shrunk.
std::string format_shortening_advice(const io::Record& record, const MediaList& media) {
  const bool has_videos = !record.videos.empty();
  std::string image_hint;
  if (!record.images.empty() || !has_videos) {
    const auto image =
        std::ranges::find_if(media, [](const auto& medium) { return medium->kind() != data::MediaKind::kVideo; });
    const bool can_shrink = image != media.end() && (*image)->get_shrink_range();
    image_hint = can_shrink ? fmt::format("shrink the images with {}", keys::data::kImageMaxPixels)
                            : "remove images, which all have the same number of tokens";
  }
  if (!has_videos) return image_hint;
  return fmt::format("{}{}use fewer frames with {}", image_hint, image_hint.empty() ? "" : ", or ",
                     keys::data::kVideoMaxFrames);
}

/// Returns the result of encoder.encode(). Adds the sample to its errors.
EncodedChat encode_chat(const io::Record& record, const text::RenderedChat& chat, std::span<const MediaLayout> media,
                        const ChatEncoder& encoder) {
  try {
    return encoder.encode(chat, media);
  } catch (const data::SampleError& error) {
    throw data::SampleError(error.reason(), fmt::format("sample {}: {}", record.id, error.what()));
  }
}

}  // namespace

EncodedChat encode_record(const io::Record& record, const text::RenderedChat& chat, std::span<const MediaLayout> media,
                          const ChatEncoder& encoder) {
  EncodedChat encoded_chat = encode_chat(record, chat, media, encoder);
  if (chat.is_document) select_document_tokens(record, encoded_chat);
  return encoded_chat;
}

SampleLayout LengthFitter::fit(const io::Record& record, const text::RenderedChat& chat, const MediaList& media,
                               const ObjectWriter* objects, const ChatEncoder& encoder) const {
  const int64_t max_tokens = std::min(length_limits_.max_length, length_limits_.max_positions);
  const bool shrinks_media = length_limits_.on_too_long == data::LongSamplePolicy::kShrink;
  const MediaShrinker shrinker(media, encoder);
  const auto lowest_limits = shrinks_media ? shrinker.find_lowest_limits() : std::nullopt;
  // If the media alone exceed the limit, starts with the lowest limits, to avoid tokenizing a very
  // long text.
  const bool media_exceed_limit = lowest_limits && shrinker.count_tokens({}) > max_tokens;
  SampleLayout layout =
      lay_out_sample(record, chat, media, objects, encoder, media_exceed_limit ? *lowest_limits : PixelLimits{});
  if (!media_exceed_limit && layout.tokens() <= max_tokens) return layout;
  if (!lowest_limits) throw_sample_too_long_error(record, media, layout.tokens(), std::nullopt);

  const int64_t num_text_tokens = layout.tokens() - shrinker.count_tokens(layout.limits);
  data::ShrinkInfo shrunk{.tokens = num_text_tokens + shrinker.count_tokens({})};
  for (const auto& medium : media) shrunk.pixels += medium->lay_out({}).pixel_rows * pixels_per_row_;
  for (int64_t token_budget = max_tokens - num_text_tokens, excess = 1; excess > 0; token_budget -= excess) {
    const auto limits = shrinker.find_highest_limits(token_budget);
    if (!limits) {
      throw_sample_too_long_error(record, media, shrunk.tokens,
                                  num_text_tokens + shrinker.count_tokens(*lowest_limits));
    }
    layout = lay_out_sample(record, chat, media, objects, encoder, *limits);
    // May be positive although the media fit their budget, since the tokenization of text next to
    // media depends on them.
    excess = layout.tokens() - max_tokens;
  }
  shrunk.pixels_after = count_pixels(layout.media_layouts, pixels_per_row_);
  shrunk.tokens_after = layout.tokens();
  shrunk.image_max_pixels = layout.limits.image.value_or(0);
  shrunk.frame_max_pixels = layout.limits.frame.value_or(0);
  layout.shrink_info = shrunk;
  return layout;
}

void LengthFitter::throw_sample_too_long_error(const io::Record& record, const MediaList& media, int64_t tokens,
                                               std::optional<int64_t> min_tokens) const {
  const int64_t lowest_token_count = min_tokens.value_or(tokens);
  const auto message = [&] {
    if (lowest_token_count <= length_limits_.max_length) {
      return fmt::format("sample {} has {} tokens, more than {}; set {} to that or less, or shrink the images with {}",
                         record.id, lowest_token_count, length_limits_.position_description, keys::data::kMaxLength,
                         keys::data::kImageMaxPixels);
    }
    if (record.images.empty() && record.videos.empty()) {
      return fmt::format("sample {} has {} tokens, more than {}={}; raise it, or shorten its text", record.id, tokens,
                         keys::data::kMaxLength, length_limits_.max_length);
    }
    if (!min_tokens) {
      return fmt::format("sample {} has {} tokens, more than {}={}; raise it, or {}", record.id, tokens,
                         keys::data::kMaxLength, length_limits_.max_length, format_shortening_advice(record, media));
    }
    return fmt::format(
        "sample {} has {} tokens, and {} with its images at their minimum size, more than {}={}; raise it, or remove "
        "images, or frames with {}",
        record.id, tokens, lowest_token_count, keys::data::kMaxLength, length_limits_.max_length,
        keys::data::kVideoMaxFrames);
  };
  throw data::SampleTooLongError(tokens, message(), length_limits_.on_too_long == data::LongSamplePolicy::kDrop);
}

}  // namespace vlmtrain::models
