#include <ATen/core/Tensor.h>

#include "e2e/command.h"
#include "vlmtrain/image/image_file.h"

namespace vlmtrain::e2e {

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

/// A random model that predicts masks, and one record for it.
class MaskCommandsTest : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    const Result generated = run({"init", "--preset", "prs-med-tiny", "--out", "model"});
    ASSERT_EQ(generated.exit_code, 0) << generated.err;
    image_file_ = "images/" + entries(folder() / "images").front();
    const at::Tensor image_file = image::decode_image(folder() / image_file_);
    height_ = image_file.size(1);
    width_ = image_file.size(2);
    const auto records = nlohmann::json::array(
        {{{"id", "../a b"},
          {"image", image_file_},
          {"task", "find"},
          {"conversations",
           {{{"from", "human"}, {"value", "<image>\nSegment."}}, {{"from", "gpt"}, {"value", "left <SEG>"}}}},
          {"masks",
           {{{"size", {height_, width_}}, {"counts", {10, 20, height_ * width_ - 30}}, {"structure", "liver"}}}}}});
    write_text(folder() / "masks.json", records.dump());
  }

  Result ask(const std::string& checkpoint, const std::vector<std::string>& more) const {
    std::vector<std::string> command_line{"generate", "--checkpoint",     checkpoint, "--device",
                                          "cpu",      "--max-new-tokens", "8"};
    command_line.insert(command_line.end(), more.begin(), more.end());
    return run(command_line);
  }

  std::string image_file_;
  int64_t height_ = 0, width_ = 0;
};

TEST_F(MaskCommandsTest, RejectsModelsWithoutMasks) {
  const Result other_answer =
      ask(checkpoint().string(), {"--image", image_file_, "--prompt", "x", "--mask-out", "out"});
  EXPECT_EQ(other_answer.exit_code, 2);
  EXPECT_THAT(other_answer.err, AllOf(HasSubstr("--mask-out"), HasSubstr("predicts no masks"), HasSubstr("prs_med")));
  const Result command_line = ask("model", {"--prompt", "x", "--mask-out", "out"});
  EXPECT_EQ(command_line.exit_code, 2);
  EXPECT_THAT(command_line.err, AllOf(HasSubstr("the input has no image"), HasSubstr("--image")));
  const Result refused = ask("model", {"--image", image_file_, "--prompt", "x", "--mask-out", "images"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("new or empty"));
  EXPECT_FALSE(std::filesystem::exists(folder() / "out"));
}

TEST_F(MaskCommandsTest, AnswerWithoutMaskTokenWritesNothing) {
  const Result result = ask("model", {"--image", image_file_, "--prompt", "x", "--mask-out", "out", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(nlohmann::json::parse(result.out)["masks"], IsEmpty());
  EXPECT_THAT(result.err, HasSubstr("the answer has no mask token"));
  EXPECT_FALSE(std::filesystem::exists(folder() / "out"));
}

TEST_F(MaskCommandsTest, WritesTheMasksOfAnAnswer) {
  const Result train_result =
      run({"train", "--config", "train.yaml", "--device", "cpu", "model.path=model", "data.train=masks.json",
           "data.eval=", "data.image_root=.", "training.global_batch_size=1", "training.max_steps=25",
           "training.learning_rate=1.0e-2", "output.sample_predictions=0"});
  ASSERT_EQ(train_result.exit_code, 0) << train_result.err;
  std::filesystem::create_directory(folder() / "out");
  write_text(folder() / "out/mask_7.png", "of an earlier answer");
  const std::vector<std::string> record{"--data", "masks.json"};
  auto command_line = record;
  command_line.insert(command_line.end(), {"--mask-out", "out", "--json"});
  const Result result = ask("run", command_line);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_THAT(json["text"].get<std::string>(), HasSubstr("<SEG>"));
  ASSERT_EQ(json["masks"].size(), 1u);
  EXPECT_EQ(json["masks"][0]["file"], "out/mask_1.png");
  EXPECT_THAT(entries(folder() / "out"), UnorderedElementsAre("mask_1.png", "overlay.png"));
  EXPECT_THAT(result.err, HasSubstr("out: 1 mask and overlay.png written"));
  const at::Tensor mask = image::decode_image(folder() / "out/mask_1.png")[0];
  EXPECT_EQ(mask.sizes(), (std::vector<int64_t>{height_, width_}));
  EXPECT_EQ(json["masks"][0]["pixels"], mask.ne(0).sum().item<int64_t>());
  const at::Tensor overlay = image::decode_image(folder() / "out/overlay.png");
  EXPECT_EQ(overlay[1][10][0].item<int>(), 210) << "the upper end of the true mask, in the first column";

  const Result text = ask("run", record);
  EXPECT_THAT(text.out, HasSubstr("<SEG>"));
  EXPECT_THAT(text.err, HasSubstr("the answer has 1 mask; --mask-out DIR writes it"));
}

TEST_F(MaskCommandsTest, EvalScoresAndDrawsMasks) {
  const std::vector<std::string> command_line{
      "eval",     "--config", "train.yaml",           "--checkpoint",      "model",
      "--device", "cpu",      "data.eval=masks.json", "data.image_root=.", "--mask-out",
      "overlays"};
  const Result table = run(command_line);
  ASSERT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, testing::ContainsRegex("masks by task +masks +Dice +IoU +Hausdorff-95\nfind +1 "));
  EXPECT_THAT(table.out, testing::ContainsRegex("masks by structure .*\nliver +1 +[01]\\.[0-9]+ "));
  EXPECT_THAT(entries(folder() / "overlays"), UnorderedElementsAre("_.._a_b.png"));
  const at::Tensor overlay = image::decode_image(folder() / "overlays/_.._a_b.png");
  EXPECT_EQ(overlay.sizes(), (std::vector<int64_t>{3, height_, width_}));
  const Result again = run(command_line);
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("is not an empty folder"));
}

}  // namespace

}  // namespace vlmtrain::e2e
