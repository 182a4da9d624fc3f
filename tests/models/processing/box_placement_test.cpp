// Boxes in the text of a sample against the pixels of the same sample: a white rectangle is drawn at a
// box, and the box in the text must be where the rectangle is in the input of the vision tower.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "models/checkpoint_copy.h"
#include "models/processing/box_images.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/models/media_preview.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {
namespace {

using image::Box;
using image::ImageSize;

/// Returns the label text of a sample.
std::string get_label_text(const Processor& processor, const data::Sample& sample) {
  std::vector<int64_t> ids;
  for (size_t i = 0; i < sample.token_ids.size(); ++i) {
    if (sample.label_mask[i] != 0) ids.push_back(sample.token_ids[i]);
  }
  return processor.tokenizer().decode(ids, /*skip_special_tokens=*/true);
}

/// Returns the box in the text of a sample as fractions of width and height of the model's image.
/// `notation`: that of the family.
Box read_box(const std::string& text, CoordinateNotation notation, ImageSize view) {
  std::vector<double> values;
  for (size_t pos = 0; pos < text.size();) {
    size_t end = pos;
    while (end < text.size() && (std::isdigit(static_cast<unsigned char>(text[end])) != 0 || text[end] == '.')) ++end;
    if (end > pos) values.push_back(std::stod(text.substr(pos, end - pos)));
    pos = end + 1;
  }
  EXPECT_EQ(values.size(), 4) << text;
  values.resize(4);
  const auto [x1, y1, x2, y2] = std::tuple(values[0], values[1], values[2], values[3]);
  const auto width = static_cast<double>(view.width), height = static_cast<double>(view.height);
  switch (notation) {
    case CoordinateNotation::kAbsolute:
      return {{x1 / width, y1 / height}, {x2 / width, y2 / height}};
    case CoordinateNotation::kNormalized1:
      return {{x1, y1}, {x2, y2}};
    case CoordinateNotation::kNormalized1000:
      return {{x1 / 1000, y1 / 1000}, {x2 / 1000, y2 / 1000}};
    case CoordinateNotation::kLocationTokens:
      return {{y1 / 1024, x1 / 1024}, {y2 / 1024, x2 / 1024}};
  }
  return {};
}

/// The largest rounding of a fraction by a notation.
double get_rounding(CoordinateNotation notation, ImageSize view) {
  switch (notation) {
    case CoordinateNotation::kAbsolute:
      return 0.5 / static_cast<double>(std::min(view.height, view.width));
    case CoordinateNotation::kNormalized1:
      return 0.005;
    case CoordinateNotation::kNormalized1000:
      return 0.0005;
    case CoordinateNotation::kLocationTokens:
      return 1.0 / 1024;  // rounds down
  }
  return 0;
}

struct FamilyCase {
  const char* name;
  CoordinateNotation notation;
  bool crops = false;             // the processor crops images to their center
  bool has_gray_padding = false;  // almost as bright as half of white
};

void PrintTo(const FamilyCase& family, std::ostream* stream) {
  *stream << family.name;
}

/// Limit for images that are divided into patches.
constexpr int64_t kMaxPatchImagePixels = int64_t{256} * 256;

class BoxPlacementTest : public testing::TestWithParam<FamilyCase> {
 protected:
  BoxPlacementTest() {
    // The checkpoints of patches limit images to some 50 x 50 pixels, too few for the tolerance.
    if (!std::filesystem::exists(copy_.path() / "preprocessor_config.json")) {
      checkpoint_ = copy_.origin().checkpoint();  // may name files next to its folder
      return;
    }
    copy_.edit("preprocessor_config.json", [](auto& config) {
      if (!config.contains("merge_size")) return;
      if (config.contains("max_pixels")) config["max_pixels"] = kMaxPatchImagePixels;
      if (config.contains("size")) config["size"]["longest_edge"] = kMaxPatchImagePixels;
    });
  }

  /// Draws `count` rectangles in images of random sizes and checks the boxes in the texts.
  void check_boxes(int64_t count, const std::function<data::Sample(const Processor&, const io::Record&)>& process,
                   double tolerance) {
    const auto processor = load_processor(checkpoint_, settings_);
    std::mt19937 random(44);
    int64_t num_outside = 0;
    for (int64_t i = 0; i < count; ++i) {
      const auto draw = [&](int64_t low, int64_t high) {
        return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
      };
      constexpr int64_t kMinRectangle = 12;
      const ImageSize size{.height = draw(40, 300), .width = draw(40, 300)};
      const int64_t left = draw(0, size.width - kMinRectangle), top = draw(0, size.height - kMinRectangle);
      const int64_t right = draw(left + kMinRectangle, size.width), bottom = draw(top + kMinRectangle, size.height);
      const Box box{{static_cast<double>(left), static_cast<double>(top)},
                    {static_cast<double>(right), static_cast<double>(bottom)}};
      const io::Record record =
          make_box_record(image::encode_png(draw_rectangle(size, box)),
                          {box.top_left.x, box.top_left.y, box.bottom_right.x, box.bottom_right.y});
      try {
        check_sample(*processor, record, process(*processor, record), tolerance);
      } catch (const data::SampleError& error) {
        ASSERT_THAT(error.what(), testing::HasSubstr("crops the image to its center"));
        ++num_outside;
      }
      if (HasFailure())
        FAIL() << "image " << size.width << " x " << size.height << ", box " << left << " " << top << " " << right
               << " " << bottom;
    }
    EXPECT_LE(num_outside, GetParam().crops ? count / 3 : 0);
  }

  void check_sample(const Processor& processor, const io::Record& record, const data::Sample& sample,
                    double tolerance) const {
    const auto previews = processor.preview_media(record, sample);
    const MediaPreview& preview = previews.front();
    const ImageSize view{preview.pixels.size(1), preview.pixels.size(2)};
    const Box box = read_box(get_label_text(processor, sample), notation(), view);
    const auto width = static_cast<double>(view.width), height = static_cast<double>(view.height);
    const Box pixels{{box.top_left.x * width, box.top_left.y * height},
                     {box.bottom_right.x * width, box.bottom_right.y * height}};
    const double rounding = get_rounding(notation(), view) * std::max(width, height);
    // A threshold above gray padding moves blurred edges by a quarter of their width.
    const double threshold = GetParam().has_gray_padding ? 190 : 127.5;
    if (GetParam().has_gray_padding) tolerance += 0.5;
    EXPECT_LE(compute_edge_distance(find_rectangle(preview.pixels, threshold), pixels), tolerance + rounding)
        << get_label_text(processor, sample);
  }

  CoordinateNotation notation() const {
    return settings_.boxes.output == data::BoxOutput::kModel ? GetParam().notation
                                                             : CoordinateNotation::kNormalized1000;
  }

  const CheckpointCopy copy_{GetParam().name};
  std::filesystem::path checkpoint_ = copy_.path();
  ProcessorSettings settings_ = copy_.origin().processor_settings();
};

/// Pixels of the model's image by which the edge of a resized rectangle may differ from the exact
/// one: filters with antialiasing keep half of white within a pixel of the edge.
constexpr double kEdgeTolerance = 1;

TEST_P(BoxPlacementTest, BoxesAreWhereTheModelSeesTheObject) {
  check_boxes(
      200, [](const Processor& processor, const io::Record& record) { return processor.process(record, 0); },
      kEdgeTolerance);
}

TEST_P(BoxPlacementTest, HeaderSamplesHaveTheSameTokens) {
  const auto processor = load_processor(checkpoint_, settings_);
  const auto image = draw_rectangle({.height = 90, .width = 120}, {{40, 30}, {80, 60}});
  const io::Record record = make_box_record(image::encode_png(image), {40, 30, 80, 60});
  EXPECT_EQ(processor->process_headers(record, 0).token_ids, processor->process(record, 0).token_ids);
}

INSTANTIATE_TEST_SUITE_P(Families, BoxPlacementTest,
                         testing::Values(FamilyCase{"qwen2_5_vl_mixed", CoordinateNotation::kAbsolute},
                                         FamilyCase{"qwen2_vl_images", CoordinateNotation::kNormalized1000},
                                         FamilyCase{"qwen3_vl_images", CoordinateNotation::kNormalized1000},
                                         FamilyCase{"internvl3_tiles", CoordinateNotation::kNormalized1000},
                                         FamilyCase{"gemma3_crops", CoordinateNotation::kLocationTokens},
                                         FamilyCase{"mixed_batch", CoordinateNotation::kNormalized1000},
                                         FamilyCase{"nanovlm_tiles", CoordinateNotation::kNormalized1000},
                                         FamilyCase{"nanovlm_untied", CoordinateNotation::kNormalized1000},
                                         FamilyCase{"llava_original", CoordinateNotation::kNormalized1, false, true},
                                         FamilyCase{"llava_siglip_qwen2", CoordinateNotation::kNormalized1},
                                         FamilyCase{"llava_clip_llama", CoordinateNotation::kNormalized1, true}),
                         [](const auto& instance) { return std::string(instance.param.name); });

using MovedBoxTest = BoxPlacementTest;

TEST_P(MovedBoxTest, BoxesMoveWithAugmentation) {
  settings_.augment = {.horizontal_flip_probability = 0.5, .max_rotation_degrees = 10, .max_brightness_change = 0};
  int64_t num_moved = 0;
  // Corners of a rotated rectangle are half as bright as its sides one pixel inwards.
  constexpr double kRotatedCornerTolerance = 2;
  check_boxes(
      200,
      [&](const Processor& processor, const io::Record& record) {
        static uint64_t seed = 0;
        data::Sample sample = processor.process_augmented(record, 0, ++seed);
        num_moved += sample.token_ids != processor.process_headers(record, 0).token_ids ? 1 : 0;
        EXPECT_EQ(sample.token_ids.size(), processor.process_headers(record, 0).token_ids.size());
        return sample;
      },
      kRotatedCornerTolerance + kEdgeTolerance);
  EXPECT_GE(num_moved, 20);
}

TEST_P(MovedBoxTest, BoxesMoveWithShrunkImages) {
  const auto processor = load_processor(checkpoint_, settings_);
  const auto image = draw_rectangle({.height = 280, .width = 300}, {{100, 80}, {200, 240}});
  const io::Record record = make_box_record(image::encode_png(image), {100, 80, 200, 240});
  settings_.max_length = processor->process(record, 0).tokens() / 2;
  const auto shrinking_processor = load_processor(checkpoint_, settings_);
  const data::Sample shrunk = shrinking_processor->process(record, 0);
  ASSERT_TRUE(shrunk.shrink_info);
  EXPECT_LE(shrunk.tokens(), settings_.max_length);
  check_sample(*shrinking_processor, record, shrunk, kEdgeTolerance);
}

TEST_P(MovedBoxTest, NotationCanBeSelected) {
  settings_.boxes.output = data::BoxOutput::kNormalized1000;
  check_boxes(
      20, [](const Processor& processor, const io::Record& record) { return processor.process(record, 0); },
      kEdgeTolerance);
}

INSTANTIATE_TEST_SUITE_P(Families, MovedBoxTest,
                         testing::Values(FamilyCase{"qwen2_5_vl_mixed", CoordinateNotation::kAbsolute},
                                         FamilyCase{"qwen3_vl_images", CoordinateNotation::kNormalized1000}),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace vlmtrain::models
