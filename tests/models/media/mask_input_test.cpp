#include "models/media/mask_input.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include "io/temporary_folder.h"
#include "models/mask_samples.h"
#include "vlmtrain/data/loader/loader.h"
#include "vlmtrain/data/sample/sample_shape.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class MaskInputTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { data_ = std::make_unique<MaskSamples>(); }
  static void TearDownTestSuite() { data_.reset(); }

  /// Returns the error of a record with these masks on an image of 96 × 128 pixels.
  static std::string get_error(const std::string& answer, std::vector<io::MaskSource> masks) {
    const auto record =
        MaskSamples::make_record("r", {data_->write_image("plain", 96, 128)}, "Show it.", answer, std::move(masks));
    const auto processor = data_->processor();
    std::string sample_error, outline_error;
    try {
      data::make_sample(*processor, record, 0);
    } catch (const data::SampleError& error) {
      sample_error = error.what();
    }
    try {
      data::make_header_sample(*processor, record, 0);
    } catch (const data::SampleError& error) {
      outline_error = error.what();
    }
    EXPECT_TRUE(outline_error.empty() || outline_error == sample_error) << outline_error;
    return sample_error;
  }

  static std::unique_ptr<MaskSamples> data_;
};

std::unique_ptr<MaskSamples> MaskInputTest::data_;

TEST_F(MaskInputTest, SquareIsFilledFromUpperLeftCorner) {
  EXPECT_EQ(compute_valid_region({.height = 96, .width = 128}, 128), (data::ValidRegion{.rows = 96, .columns = 128}));
  EXPECT_EQ(compute_valid_region({.height = 1000, .width = 10}, 64), (data::ValidRegion{.rows = 64, .columns = 1}));
  EXPECT_EQ(compute_valid_region({.height = 1, .width = 5000}, 64), (data::ValidRegion{.rows = 1, .columns = 64}));
  const auto image = at::full({3, 20, 40}, 200, at::kByte);
  const auto square_image = make_mask_image(image, 80);
  EXPECT_TRUE(at::equal(square_image.narrow(1, 0, 40), at::full({3, 40, 80}, 200, at::kByte)));
  EXPECT_EQ(square_image[0][50][3].item<int>(), 124) << "the encoder normalizes it to 0";
  const auto mask = at::ones({20, 40}, at::kByte);
  EXPECT_EQ(make_square_mask(mask, 80).sum().item<int64_t>(), 40 * 80);
}

TEST_F(MaskInputTest, SampleHasItsMasks) {
  const auto samples = data_->samples();
  const data::SegmentationMasks& masks = samples[2].masks;
  ASSERT_EQ(masks.count(), 2);
  EXPECT_THAT(masks.image_indices, ElementsAre(0, 0)) << "one image for both";
  EXPECT_THAT(masks.structure_names, ElementsAre("liver", "bone"));
  EXPECT_EQ(masks.pixels.sizes(), (at::IntArrayRef{1, 3, 128, 128}));
  EXPECT_EQ(masks.targets.sizes(), (at::IntArrayRef{2, 128, 128}));
  EXPECT_EQ(masks.targets[0].sum().item<int64_t>(), 30 * 40) << "its rectangle, and no padding";
  const auto processor = data_->processor();
  const int64_t token = processor->tokenizer().token_to_id("<SEG>").value();
  for (const int64_t position : masks.token_positions)
    EXPECT_EQ(samples[2].token_ids[static_cast<size_t>(position)], token);
  EXPECT_TRUE(samples[1].masks.empty());
  EXPECT_TRUE(samples[3].masks.empty());
}

TEST_F(MaskInputTest, OutlineHasTheSameShape) {
  const auto processor = data_->processor();
  int64_t index = 0;
  for (const auto& record : data_->records()) {
    const auto shape = data::get_sample_shape(data::make_sample(*processor, record, index));
    EXPECT_EQ(data::get_sample_shape(data::make_header_sample(*processor, record, index)), shape) << record.id;
    EXPECT_EQ(data::get_sample_shape(data::make_meta_sample(shape)), shape) << record.id;
    ++index;
  }
}

TEST_F(MaskInputTest, RefusesMasksThatDoNotMatch) {
  const auto small_mask = MaskSamples::make_rectangle(90, 128, 1, 1, 5, 5),
             matching_mask = MaskSamples::make_rectangle(96, 128, 1, 1, 5, 5);
  EXPECT_THAT(
      get_error("<SEG>", {{.file = data_->write_mask("small", small_mask)}}),
      AllOf(HasSubstr("sample r: mask 1"), HasSubstr("small.png"), HasSubstr("128 x 90"), HasSubstr("128 x 96")));
  EXPECT_THAT(get_error("<SEG>", {{.rle = image::encode_rle(small_mask)}}),
              AllOf(HasSubstr("mask 1"), HasSubstr("128 x 90")));
  EXPECT_THAT(get_error("It is there.", {{.rle = image::encode_rle(matching_mask)}}),
              AllOf(HasSubstr("1 masks and 0 tokens <SEG>"), HasSubstr("give one token per mask")));
  EXPECT_THAT(get_error("<SEG> and <SEG>", {{.rle = image::encode_rle(matching_mask)}}),
              HasSubstr("1 masks and 2 tokens"));
  EXPECT_THAT(get_error("<SEG>", {}), HasSubstr("0 masks and 1 tokens"));
  EXPECT_THAT(get_error("<SEG>", {{.file = "nowhere.png"}}), AllOf(HasSubstr("mask 1"), HasSubstr("nowhere.png")));
  auto record = MaskSamples::make_record("r", {data_->write_image("plain", 96, 128)}, "Show it.", "<SEG>");
  record.mask_problem = "mask 1 is neither a path nor a run-length encoding";
  EXPECT_THAT(get_error_message([&] { data::make_sample(*data_->processor(), record, 0); }),
              HasSubstr("neither a path"));
}

TEST_F(MaskInputTest, MaskTokenInAQuestionIsIgnored) {
  const auto record = MaskSamples::make_record("r", {data_->write_image("plain", 96, 128)}, "What does <SEG> mean?",
                                               "It stands for a mask.");
  EXPECT_TRUE(data::make_sample(*data_->processor(), record, 0).masks.empty());
}

TEST_F(MaskInputTest, ImagesAndMasksAreAugmentedAlike) {
  ProcessorSettings settings;
  settings.augment = {.horizontal_flip_probability = 0.5, .max_rotation_degrees = 20, .max_brightness_change = 0.3};
  const auto processor = data_->processor(settings);
  const io::Record record = data_->records()[0];
  const auto make_sample = [&](uint64_t seed) { return data::make_sample(*processor, record, 0, seed); };
  const auto first = make_sample(1);
  EXPECT_TRUE(at::equal(make_sample(1).masks.targets, first.masks.targets));
  EXPECT_TRUE(at::equal(make_sample(1).masks.pixels, first.masks.pixels));
  EXPECT_TRUE(at::equal(make_sample(1).pixel_values, first.pixel_values));
  EXPECT_FALSE(at::equal(make_sample(2).pixel_values, first.pixel_values));
  const auto unaugmented = data::make_sample(*processor, record, 0);
  EXPECT_TRUE(at::equal(unaugmented.masks.targets, data_->samples()[0].masks.targets))
      << "an evaluation changes nothing";
  // The image is bright exactly inside its two rectangles and must stay bright under the augmented
  // mask.
  for (uint64_t seed = 1; seed < 6; ++seed) {
    const auto sample = make_sample(seed);
    const auto green = sample.masks.pixels[0][1].to(at::kFloat), mask = sample.masks.targets[0].to(at::kFloat);
    const double mean_inside = ((green * mask).sum() / mask.sum()).item<double>();
    EXPECT_GT(mean_inside, 110) << "60 outside the rectangles, 180 inside, times 0.7 at least; seed " << seed;
  }
}

TEST_F(MaskInputTest, AnswerIsPredictedInFirstImage) {
  const auto processor = data_->processor();
  const auto record = data_->records()[0];
  const int64_t token = processor->tokenizer().token_to_id("<SEG>").value();
  const auto prompt = processor->process_prompt(record, 0);
  EXPECT_FALSE(processor->make_mask_prompt(record, prompt, {5, 6})) << "without a token no mask is predicted";
  const auto sample = processor->make_mask_prompt(record, prompt, {5, token, 6, token});
  ASSERT_TRUE(sample);
  EXPECT_EQ(sample->tokens(), prompt.tokens() + 4);
  EXPECT_THAT(sample->masks.token_positions, ElementsAre(prompt.tokens() + 1, prompt.tokens() + 3));
  EXPECT_FALSE(sample->masks.targets.defined());
  EXPECT_EQ(processor->load_masks(record).at(0).sum().item<int64_t>(), 30 * 40);
}

TEST_F(MaskInputTest, ImageSizeIsThatOfEncoder) {
  ProcessorSettings settings;
  settings.mask_image_size = 192;
  const auto sample = data::make_sample(*data_->processor(settings), data_->records()[0], 0);
  EXPECT_EQ(sample.masks.pixels.size(-1), 192);
  settings.mask_image_size = 100;
  EXPECT_THAT(get_error_message([&] { data_->processor(settings); }, ExitCode::kUsage), HasSubstr("multiples of 16"));
}

}  // namespace
}  // namespace vlmtrain::models
