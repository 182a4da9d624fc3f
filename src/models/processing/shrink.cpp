#include <algorithm>

#include "models/processing/conversation_processor.h"
#include "vlmtrain/base/error.h"

// What a sample that is longer than data.max_length loses: pictures first, then frames of videos, down to the family's
// floor. Only sizes count, so that outlines and samples are the same.

namespace vlmtrain::models {

namespace {

/// The highest multiple of the range's step, from its least on, that `fits`; nothing: not the least either. REQUIRES:
/// where one fits, so does each lower one.
template <class Fits>
std::optional<int64_t> highest(const ShrinkRange& range, const Fits& fits) {
  if (!fits(range.least)) return std::nullopt;
  int64_t fitting = range.least / range.step, above = image::kMaxImagePixels / range.step + 1;
  while (above - fitting > 1) {
    const int64_t middle = fitting + (above - fitting) / 2;
    (fits(middle * range.step) ? fitting : above) = middle;
  }
  return fitting * range.step;
}

}  // namespace

int64_t ConversationProcessor::count_tokens(const std::vector<Medium>& media, const PixelLimits& limits) const {
  int64_t tokens = 0;
  for (const Medium& medium : media) {
    const bool is_video = medium.kind == data::MediumKind::kVideo;
    tokens +=
        is_video ? count_video_tokens(medium.video->info(), limits.frame) : count_tokens(medium.size, limits.picture);
  }
  return tokens;
}

std::optional<PixelLimits> ConversationProcessor::floor_of(const std::vector<Medium>& media) const {
  PixelLimits floor;
  for (const Medium& medium : media) {
    const auto range = shrink_range(medium.kind);
    if (!range) return std::nullopt;
    (medium.kind == data::MediumKind::kVideo ? floor.frame : floor.picture) = range->least;
  }
  return media.empty() ? std::nullopt : std::optional{floor};
}

std::optional<PixelLimits> ConversationProcessor::limits_for(const std::vector<Medium>& media, const PixelLimits& floor,
                                                             int64_t room) const {
  const auto fits = [&](const PixelLimits& limits) { return count_tokens(media, limits) <= room; };
  if (floor.picture) {
    const auto picture = highest(*shrink_range(data::MediumKind::kPicture),
                                 [&](int64_t pixels) { return fits({.picture = pixels, .frame = {}}); });
    if (picture) return PixelLimits{.picture = picture, .frame = {}};
  }
  if (!floor.frame) return std::nullopt;
  const auto frame = highest(*shrink_range(data::MediumKind::kVideo),
                             [&](int64_t pixels) { return fits({.picture = floor.picture, .frame = pixels}); });
  return frame ? std::optional{PixelLimits{.picture = floor.picture, .frame = frame}} : std::nullopt;
}

ConversationProcessor::MediaLayout ConversationProcessor::fitting(const io::Record& record,
                                                                  const text::RenderedChat& chat,
                                                                  const std::vector<Medium>& media) const {
  const int64_t most = std::min(settings_.max_length, most_positions());
  const bool may_shrink = settings_.on_too_long == data::LongSamplePolicy::kShrink;
  const auto floor = may_shrink ? floor_of(media) : std::nullopt;
  // The text of media that are too many tokens by themselves is not made.
  const bool is_long = floor && count_tokens(media, {}) > most;
  MediaLayout layout = lay_out(record, chat, media, is_long ? *floor : PixelLimits{});
  if (!is_long && layout.tokens() <= most) return layout;
  if (!floor) refuse_long(record, layout.tokens(), std::nullopt);

  const int64_t text = layout.tokens() - count_tokens(media, layout.limits);
  data::Shrunk shrunk{.tokens = text + count_tokens(media, {})};
  for (const Medium& medium : media) shrunk.pixels += plan_of(medium, {}).pixel_rows * input_.row.pixels();
  for (int64_t room = most - text, excess = 1; excess > 0; room -= excess) {
    const auto limits = limits_for(media, *floor, room);
    if (!limits) refuse_long(record, shrunk.tokens, text + count_tokens(media, *floor));
    layout = lay_out(record, chat, media, *limits);
    // More than none where a tokenizer takes media and text together in another way than each by itself.
    excess = layout.tokens() - most;
  }
  for (const ImagePlan& plan : layout.plans) shrunk.pixels_left += plan.pixel_rows * input_.row.pixels();
  shrunk.tokens_left = layout.tokens();
  shrunk.image_max_pixels = layout.limits.picture.value_or(0);
  shrunk.frame_max_pixels = layout.limits.frame.value_or(0);
  layout.shrunk = shrunk;
  return layout;
}

std::string ConversationProcessor::how_to_shorten(const io::Record& record) const {
  const bool videos = !record.videos.empty();
  std::string pictures;
  if (!record.images.empty() || !videos) {
    pictures = shrink_range(data::MediumKind::kPicture) ? "shrink the images with data.image_max_pixels"
                                                        : "take pictures out, which all have as many tokens";
  }
  if (!videos) return pictures;
  return fmt::format("{}{}take fewer frames with data.video_max_frames", pictures, pictures.empty() ? "" : ", or ");
}

void ConversationProcessor::refuse_long(const io::Record& record, int64_t tokens,
                                        std::optional<int64_t> at_floor) const {
  const int64_t least = at_floor.value_or(tokens);
  const auto message = [&] {
    if (least <= settings_.max_length) return beyond_positions(record.id, least);
    if (record.images.empty() && record.videos.empty()) {
      return fmt::format("sample {} has {} tokens, more than data.max_length={}; raise it, or shorten its text",
                         record.id, tokens, settings_.max_length);
    }
    if (!at_floor) {
      return fmt::format("sample {} has {} tokens, more than data.max_length={}; raise it, or {}", record.id, tokens,
                         settings_.max_length, how_to_shorten(record));
    }
    return fmt::format(
        "sample {} has {} tokens, and {} with its pictures as small as they may become, more than data.max_length={}; "
        "raise it, or take pictures, or frames with data.video_max_frames, out",
        record.id, tokens, least, settings_.max_length);
  };
  throw data::TooLong(tokens, message(), settings_.on_too_long == data::LongSamplePolicy::kDrop);
}

}  // namespace vlmtrain::models
