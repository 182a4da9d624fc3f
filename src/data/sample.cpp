#include "vlmtrain/data/sample.h"

#include <algorithm>

#include "data/record_problem.h"

namespace vlmtrain::data {

namespace {

/// Positions of its tokens, on the axis that has most.
int64_t positions_of(const Sample& sample) {
  if (sample.position_ids.empty()) return sample.tokens();
  return 1 + *std::ranges::max_element(sample.position_ids);
}

void note_positions(const PositionLimit& limit, Sample& sample) {
  const int64_t positions = positions_of(sample);
  if (positions <= limit.positions) return;
  sample.notices.push_back(
      {.kind = fmt::format("more positions than the model was made for ({} {})", limit.key, limit.positions),
       .example = fmt::format("{} positions of {} tokens", positions, sample.tokens())});
}

/// What `make` makes of a record that is usable, if there is anything to learn from it.
template <class Make>
Sample checked(const SampleProcessor& processor, const io::Record& record, int64_t index, const Make& make) {
  if (!record.problem.empty()) throw record_problem(record);
  Sample sample = make();
  VLMTRAIN_CHECK(sample.index == index, "sample {} came back as {}", index, sample.index);
  if (sample.label_tokens() == 0) {
    throw SampleError("no label tokens",
                      fmt::format("sample {} ({}) has no label token, so there is nothing to learn from it; give it "
                                  "an assistant's turn that is not empty",
                                  record.id, record.place));
  }
  sample.notices.insert(sample.notices.begin(), record.notices.begin(), record.notices.end());
  if (const auto limit = processor.made_for()) note_positions(*limit, sample);
  return sample;
}

}  // namespace

PixelRow PixelRow::of(const at::Tensor& pixels) {
  const int64_t axes = pixels.dim();
  VLMTRAIN_CHECK(axes == 4 || axes == 5, "pixels of {} dimensions", axes);
  return {.dtype = pixels.scalar_type(),
          .channels = pixels.size(1),
          .depth = axes == 5 ? pixels.size(2) : 0,
          .height = pixels.size(-2),
          .width = pixels.size(-1)};
}

std::vector<int64_t> PixelRow::sizes(int64_t rows) const {
  if (depth == 0) return {rows, channels, height, width};
  return {rows, channels, depth, height, width};
}

int64_t PixelRow::bytes() const {
  const auto of_value = static_cast<int64_t>(c10::elementSize(dtype));
  return of_value * channels * std::max<int64_t>(depth, 1) * height * width;
}

void Sample::count(MediumKind kind, int64_t frames) {
  ++images;
  if (kind == MediumKind::kVideo) ++videos;
  if (kind == MediumKind::kVolume) ++volumes;
  video_frames += frames;
}

int64_t Sample::label_tokens() const {
  return std::count(is_label.begin(), is_label.end(), 1);
}

int64_t Masks::filled_pixels() const {
  int64_t sum = 0;
  for (const FilledPart& part : filled) sum += part.pixels();
  return sum;
}

int64_t Sample::bytes() const {
  const auto bytes_of = [](const at::Tensor& tensor) {
    return tensor.defined() && !tensor.is_meta() ? tensor.nbytes() : 0;
  };
  const size_t pixels = bytes_of(pixel_values) + bytes_of(masks.pixels) + bytes_of(masks.targets);
  const size_t numbers =
      (token_ids.size() + image_token_positions.size() + position_ids.size() + modalities.size()) * sizeof(int64_t);
  return static_cast<int64_t>(pixels + numbers + is_label.size());
}

SampleError record_problem(const io::Record& record) {
  return {"unusable record", fmt::format("sample {} ({}): {}", record.id, record.place, record.problem)};
}

Sample make_sample(const SampleProcessor& processor, const io::Record& record, int64_t index,
                   std::optional<uint64_t> augmented_by) {
  return checked(processor, record, index, [&] {
    return augmented_by ? processor.process_augmented(record, index, *augmented_by) : processor.process(record, index);
  });
}

Sample make_outline(const SampleProcessor& processor, const io::Record& record, int64_t index) {
  return checked(processor, record, index, [&] { return processor.outline(record, index); });
}

}  // namespace vlmtrain::data
