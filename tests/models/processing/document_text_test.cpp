#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "models/mask_samples.h"
#include "models/processing/chat_encoder.h"

namespace vlmtrain::models {
namespace {

using io::Role;
using testing::ElementsAre;
using testing::HasSubstr;

io::Record make_document(const std::string& text) {
  io::Record record;
  record.id = "document";
  record.turns = {{Role::kDocument, text}};
  return record;
}

std::string get_learned_text(const Processor& processor, const data::Sample& sample) {
  std::vector<int64_t> ids;
  for (size_t i = 0; i < sample.token_ids.size(); ++i) {
    if (sample.label_mask[i] != 0) ids.push_back(sample.token_ids[i]);
  }
  return processor.tokenizer().decode(ids, /*skip_special_tokens=*/false);
}

TEST(DocumentText, MarkupOfImagesIsNotLearned) {
  const text::TemplateSettings settings{.image_markup = {.block = "<a><b><c>", .token = "<b>"},
                                        .video_markup = {.block = "<v>", .token = "<v>"}};
  const text::Turn document{
      .role = Role::kDocument, .text = "<image>\nOne, <image> and <video>", .literal_placeholder_offsets = {13}};
  const text::RenderedChat chat = render_document(document, settings, "<end>");
  EXPECT_EQ(chat.text, "<a><b><c>\nOne, <image> and <v><end>");
  EXPECT_THAT(chat.media, ElementsAre(text::MediaSpan{{3, 6}, false}, text::MediaSpan{{27, 30}, true}));
  EXPECT_THAT(chat.answers, ElementsAre(text::TextSpan{9, 27}, text::TextSpan{30, 35}));
  EXPECT_TRUE(chat.is_document);
}

TEST(DocumentText, EndIsNotWrittenTwice) {
  const auto render = [](const std::string& text, std::string_view end) {
    return render_document({.role = Role::kDocument, .text = text}, {}, end).text;
  };
  EXPECT_EQ(render("A text.</s>", "</s>"), "A text.</s>");
  EXPECT_EQ(render("A text.</s> ", "</s>"), "A text.</s> </s>");
  EXPECT_EQ(render("A text.", ""), "A text.");
}

TEST(DocumentText, EosTokenOfTheTokenizerEndsDocuments) {
  const CheckpointCopy copy("qwen3_text");
  const auto processor = load_processor(copy.path(), {});
  const data::Sample sample = processor->process_headers(make_document("A text."), 0);
  EXPECT_EQ(processor->tokenizer().decode(sample.token_ids, false), "A text.<|im_end|>");
  EXPECT_EQ(sample.label_tokens(), sample.tokens() - 1) << "no token precedes the first one";
  copy.edit("tokenizer_config.json", [](auto& config) { config["eos_token"] = "<|endoftext|>"; });
  const auto changed = load_processor(copy.path(), {});
  EXPECT_EQ(changed->tokenizer().decode(changed->process_headers(make_document("A text."), 0).token_ids, false),
            "A text.<|endoftext|>");
}

TEST(DocumentText, TokensOfThePostProcessorAreKept) {
  const CheckpointCopy copy("gemma3_text");
  const auto get_tokens = [&] {
    const auto processor = load_processor(copy.path(), {});
    const data::Sample sample = processor->process_headers(make_document("A text."), 0);
    EXPECT_EQ(sample.label_tokens(), sample.tokens() - 1);
    return processor->tokenizer().decode(sample.token_ids, false);
  };
  EXPECT_EQ(get_tokens(), "<bos>A text.<eos>");
  copy.edit("tokenizer.json", [](auto& config) {
    config["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single",
                                 {{{"SpecialToken", {{"id", "<bos>"}, {"type_id", 0}}}},
                                  {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                                  {{"SpecialToken", {{"id", "<eos>"}, {"type_id", 0}}}}}},
                                {"pair", nlohmann::json::array()},
                                {"special_tokens",
                                 {{"<bos>", {{"id", "<bos>"}, {"ids", {2}}, {"tokens", {"<bos>"}}}},
                                  {"<eos>", {{"id", "<eos>"}, {"ids", {1}}, {"tokens", {"<eos>"}}}}}}};
  });
  EXPECT_EQ(get_tokens(), "<bos>A text.<eos>") << "the post-processor writes the end";
}

TEST(DocumentText, PromptIsTheTextWithoutItsEnd) {
  const parity::Case origin("qwen3_text");
  const auto processor = origin.load_processor();
  const data::Sample prompt = processor->process_prompt(make_document("A text."), 0);
  EXPECT_EQ(processor->tokenizer().decode(prompt.token_ids, false), "A text.");
  EXPECT_EQ(prompt.label_tokens(), 0);
}

TEST(DocumentText, TextsWithTheTokenOfImagesAreBadSamples) {
  const parity::Case origin("qwen3_vl_images");
  EXPECT_THAT(
      io::get_error_message([&] { origin.load_processor()->process(make_document("A <|image_pad|> token."), 0); }),
      HasSubstr("1 image tokens in its text for 0 image features"));
}

TEST(DocumentText, ModelsOfMasksLearnTextsWithoutMasks) {
  const MaskSamples samples;
  const auto processor = load_processor(samples.checkpoint(), {});
  ASSERT_TRUE(processor->predicts_masks());
  const data::Sample text = data::make_sample(*processor, make_document("A text."), 0);
  EXPECT_TRUE(text.masks.empty());
  EXPECT_THAT(get_learned_text(*processor, text), HasSubstr("text."));
  io::Record document = make_document("Before.<image> The organ is <SEG>.");
  document.images = {samples.write_image("scan", 20, 30)};
  document.masks = {{.file = samples.write_mask("mask", MaskSamples::make_rectangle(20, 30, 4, 5, 6, 7))}};
  EXPECT_EQ(data::make_sample(*processor, document, 0).masks.count(), 1);
}

TEST(DocumentText, WindowsHaveEachTokenOnce) {
  const parity::Case origin("qwen3_text");
  const auto processor = origin.load_processor();
  const io::Record document = make_document("A long text, 東京, with 42 words … or fewer. It isn't the end!");
  const data::Sample whole = processor->process(document, 0);
  for (const int64_t size : {2, 3, 7, 16, 1000}) {
    std::vector<int64_t> tokens{whole.token_ids.front()}, learned;
    const int64_t count = io::count_text_windows(whole.tokens(), size);
    for (int64_t i = 0; i < count; ++i) {
      io::Record window = document;
      window.window = io::TextWindow{.index = i, .tokens = size};
      const data::Sample sample = processor->process(window, 0);
      EXPECT_LE(sample.tokens(), size);
      EXPECT_EQ(sample.token_ids.front(), tokens.back()) << "the last token of the window before";
      tokens.insert(tokens.end(), sample.token_ids.begin() + 1, sample.token_ids.end());
      EXPECT_EQ(sample.label_mask.front(), 0);
      EXPECT_EQ(sample.label_tokens(), sample.tokens() - 1);
      EXPECT_TRUE(sample.tokens() == size || i + 1 == count);
    }
    EXPECT_EQ(tokens, whole.token_ids) << size;
  }
}

TEST(DocumentText, WindowsFitWhereTheTextIsTooLong) {
  const parity::Case origin("qwen3_text");
  ProcessorSettings settings = origin.processor_settings();
  settings.max_length = 8;
  const auto processor = load_processor(origin.checkpoint(), settings);
  io::Record document = make_document("A long text that has more than eight tokens.");
  EXPECT_THROW(processor->process(document, 0), data::SampleTooLongError);
  document.window = io::TextWindow{.index = 1, .tokens = 8};
  EXPECT_EQ(processor->process(document, 0).tokens(), 8);
  document.window = io::TextWindow{.index = 99, .tokens = 8};
  EXPECT_THAT(io::get_error_message([&] { processor->process(document, 0); }), HasSubstr("do not change data"));
}

TEST(DocumentText, PreviewOfAWindowHasItsTextOnly) {
  const parity::Case origin("qwen3_text");
  const auto processor = origin.load_processor();
  io::Record document = make_document("A long text that has more than eight tokens.");
  const std::string text = processor->render(document, false).text;
  EXPECT_EQ(text, "A long text that has more than eight tokens.<|im_end|>");
  document.window = io::TextWindow{.index = 1, .tokens = 8};
  const data::Sample sample = processor->process(document, 0);
  const text::RenderedChat window = processor->render(document, false);
  EXPECT_EQ(window.text, processor->tokenizer().decode(sample.token_ids, false));
  ASSERT_EQ(window.answers.size(), 1U);
  EXPECT_EQ(window.text.substr(window.answers.front().begin), get_learned_text(*processor, sample));
}

}  // namespace
}  // namespace vlmtrain::models
