#include "models/processing/mask_input.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "io/temporary_folder.h"
#include "models/mask_samples.h"
#include "vlmtrain/data/loader.h"
#include "vlmtrain/data/shape.h"

namespace vlmtrain::models {
namespace {

using io::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class MaskInputTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { data_ = std::make_unique<MaskSamples>(); }
  static void TearDownTestSuite() { data_.reset(); }

  /// What refuses a record whose picture of 96 × 128 pixels has these masks.
  static std::string refusal(const std::string& answer, std::vector<io::MaskSource> masks) {
    const auto record =
        MaskSamples::record("r", {data_->picture("plain", 96, 128)}, "Show it.", answer, std::move(masks));
    const auto processor = data_->processor();
    std::string whole, outline;
    try {
      data::make_sample(*processor, record, 0);
    } catch (const data::SampleError& error) {
      whole = error.what();
    }
    try {
      data::make_outline(*processor, record, 0);
    } catch (const data::SampleError& error) {
      outline = error.what();
    }
    EXPECT_TRUE(outline.empty() || outline == whole) << outline;
    return whole;
  }

  static std::unique_ptr<MaskSamples> data_;
};

std::unique_ptr<MaskSamples> MaskInputTest::data_;

TEST_F(MaskInputTest, ASquareIsFilledFromItsUpperLeftCorner) {
  EXPECT_EQ(filled_part({.height = 96, .width = 128}, 128), (data::FilledPart{.rows = 96, .columns = 128}));
  EXPECT_EQ(filled_part({.height = 1000, .width = 10}, 64), (data::FilledPart{.rows = 64, .columns = 1}));
  EXPECT_EQ(filled_part({.height = 1, .width = 5000}, 64), (data::FilledPart{.rows = 1, .columns = 64}));
  const auto picture = at::full({3, 20, 40}, 200, at::kByte);
  const auto square = square_picture(picture, 80);
  EXPECT_TRUE(at::equal(square.narrow(1, 0, 40), at::full({3, 40, 80}, 200, at::kByte)));
  EXPECT_EQ(square[0][50][3].item<int>(), 124) << "what the encoder takes for 0";
  const auto mask = at::ones({20, 40}, at::kByte);
  EXPECT_EQ(square_mask(mask, 80).sum().item<int64_t>(), 40 * 80);
}

TEST_F(MaskInputTest, ASampleHasWhatItIsToDraw) {
  const auto samples = data_->samples();
  const data::Masks& two = samples[2].masks;
  ASSERT_EQ(two.count(), 2);
  EXPECT_THAT(two.pictures, ElementsAre(0, 0)) << "one picture for both";
  EXPECT_THAT(two.structures, ElementsAre("liver", "bone"));
  EXPECT_EQ(two.pixels.sizes(), (at::IntArrayRef{1, 3, 128, 128}));
  EXPECT_EQ(two.targets.sizes(), (at::IntArrayRef{2, 128, 128}));
  EXPECT_EQ(two.targets[0].sum().item<int64_t>(), 30 * 40) << "its rectangle, and no padding";
  const auto processor = data_->processor();
  const int64_t token = processor->tokenizer().token_to_id("<SEG>").value();
  for (const int64_t place : two.token_positions) EXPECT_EQ(samples[2].token_ids[static_cast<size_t>(place)], token);
  EXPECT_TRUE(samples[1].masks.empty());
  EXPECT_TRUE(samples[3].masks.empty());
}

TEST_F(MaskInputTest, AnOutlineHasTheSameShape) {
  const auto processor = data_->processor();
  int64_t index = 0;
  for (const auto& record : data_->records()) {
    const auto whole = data::shape_of(data::make_sample(*processor, record, index));
    EXPECT_EQ(data::shape_of(data::make_outline(*processor, record, index)), whole) << record.id;
    EXPECT_EQ(data::shape_of(data::sample_of(whole)), whole) << record.id;
    ++index;
  }
}

TEST_F(MaskInputTest, RefusesWhatDoesNotBelongTogether) {
  const auto small = MaskSamples::rectangle(90, 128, 1, 1, 5, 5), right = MaskSamples::rectangle(96, 128, 1, 1, 5, 5);
  EXPECT_THAT(
      refusal("<SEG>", {{.file = data_->mask_file("small", small)}}),
      AllOf(HasSubstr("sample r: mask 1"), HasSubstr("small.png"), HasSubstr("128 x 90"), HasSubstr("128 x 96")));
  EXPECT_THAT(refusal("<SEG>", {{.rle = image::encode_rle(small)}}), AllOf(HasSubstr("mask 1"), HasSubstr("128 x 90")));
  EXPECT_THAT(refusal("It is there.", {{.rle = image::encode_rle(right)}}),
              AllOf(HasSubstr("1 masks and 0 tokens <SEG>"), HasSubstr("each mask wants one")));
  EXPECT_THAT(refusal("<SEG> and <SEG>", {{.rle = image::encode_rle(right)}}), HasSubstr("1 masks and 2 tokens"));
  EXPECT_THAT(refusal("<SEG>", {}), HasSubstr("0 masks and 1 tokens"));
  EXPECT_THAT(refusal("<SEG>", {{.file = "nowhere.png"}}), AllOf(HasSubstr("mask 1"), HasSubstr("nowhere.png")));
  auto record = MaskSamples::record("r", {data_->picture("plain", 96, 128)}, "Show it.", "<SEG>");
  record.mask_problem = "mask 1 is neither a path nor a run-length encoding";
  EXPECT_THAT(message_of([&] { data::make_sample(*data_->processor(), record, 0); }), HasSubstr("neither a path"));
}

TEST_F(MaskInputTest, ATokenOfAQuestionDrawsNothing) {
  const auto record =
      MaskSamples::record("r", {data_->picture("plain", 96, 128)}, "What does <SEG> mean?", "It stands for a mask.");
  EXPECT_TRUE(data::make_sample(*data_->processor(), record, 0).masks.empty());
}

TEST_F(MaskInputTest, PicturesAndMasksAreChangedAlikeAndByTheSeedAlone) {
  ProcessorSettings settings;
  settings.augment = {.flip = 0.5, .rotation_degrees = 20, .brightness = 0.3};
  const auto processor = data_->processor(settings);
  const io::Record record = data_->records()[0];
  const auto made = [&](uint64_t seed) { return data::make_sample(*processor, record, 0, seed); };
  const auto first = made(1);
  EXPECT_TRUE(at::equal(made(1).masks.targets, first.masks.targets));
  EXPECT_TRUE(at::equal(made(1).masks.pixels, first.masks.pixels));
  EXPECT_TRUE(at::equal(made(1).pixel_values, first.pixel_values));
  EXPECT_FALSE(at::equal(made(2).pixel_values, first.pixel_values));
  const auto plain = data::make_sample(*processor, record, 0);
  EXPECT_TRUE(at::equal(plain.masks.targets, data_->samples()[0].masks.targets)) << "an evaluation changes nothing";
  // The picture is bright where its two rectangles are, and nowhere else: under the mask it stays so.
  for (uint64_t seed = 1; seed < 6; ++seed) {
    const auto sample = made(seed);
    const auto green = sample.masks.pixels[0][1].to(at::kFloat), mask = sample.masks.targets[0].to(at::kFloat);
    const double inside = ((green * mask).sum() / mask.sum()).item<double>();
    EXPECT_GT(inside, 110) << "60 beside the rectangles, 180 in them, times 0.7 at least; seed " << seed;
  }
}

TEST_F(MaskInputTest, AnAnswerIsDrawnInTheFirstPicture) {
  const auto processor = data_->processor();
  const auto record = data_->records()[0];
  const int64_t token = processor->tokenizer().token_to_id("<SEG>").value();
  const auto prompt = processor->process_prompt(record, 0);
  EXPECT_FALSE(processor->to_draw(record, prompt, {5, 6})) << "without a token there is nothing to draw";
  const auto sample = processor->to_draw(record, prompt, {5, token, 6, token});
  ASSERT_TRUE(sample);
  EXPECT_EQ(sample->tokens(), prompt.tokens() + 4);
  EXPECT_THAT(sample->masks.token_positions, ElementsAre(prompt.tokens() + 1, prompt.tokens() + 3));
  EXPECT_FALSE(sample->masks.targets.defined());
  EXPECT_EQ(processor->masks_of(record).at(0).sum().item<int64_t>(), 30 * 40);
}

TEST_F(MaskInputTest, TheSideIsTheEncodersToTake) {
  ProcessorSettings settings;
  settings.mask_image_size = 192;
  const auto sample = data::make_sample(*data_->processor(settings), data_->records()[0], 0);
  EXPECT_EQ(sample.masks.pixels.size(-1), 192);
  settings.mask_image_size = 100;
  EXPECT_THAT(message_of([&] { data_->processor(settings); }, ExitCode::kUsage), HasSubstr("multiples of 16"));
}

}  // namespace
}  // namespace vlmtrain::models
