#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/checkpoint_copy.h"
#include "models/processing/box_images.h"
#include "parity/case.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ObjectWriterTest : public testing::Test {
 protected:
  static io::Record make_record(std::vector<double> coordinates, std::string answer = "<bbox>") {
    return make_box_record(image::encode_png(draw_rectangle({.height = 100, .width = 200}, {{50, 20}, {150, 60}})),
                           std::move(coordinates), std::move(answer));
  }

  static std::unique_ptr<Processor> load(const char* case_name, data::BoxConversion boxes = {}) {
    const parity::Case parity_case(case_name);
    ProcessorSettings settings = parity_case.processor_settings();
    settings.boxes = boxes;
    return load_processor(parity_case.checkpoint(), settings);
  }

  static std::string get_answer(const Processor& processor, const io::Record& record) {
    return processor.write_objects(record).turns.back().text;
  }

  static std::string get_error(const Processor& processor, const io::Record& record) {
    try {
      processor.process_headers(record, 0);
      return "";
    } catch (const data::SampleError& error) {
      return error.what();
    }
  }
};

TEST_F(ObjectWriterTest, FamiliesHaveTheirFormats) {
  const std::vector<double> box{50, 20, 150, 60};
  EXPECT_EQ(get_answer(*load("qwen3_vl_images"), make_record(box)), "[250, 200, 750, 600]");
  EXPECT_EQ(get_answer(*load("internvl3_tiles"), make_record(box)), "<box>[[250, 200, 750, 600]]</box>");
  EXPECT_EQ(get_answer(*load("qwen2_vl_images"), make_record(box)), "<|box_start|>(250,200),(750,600)<|box_end|>");
  EXPECT_EQ(get_answer(*load("gemma3_crops"), make_record(box)), "<loc0204><loc0256><loc0614><loc0768>");
  // LLaVA pads 200 x 100 pixels to 200 x 200, so that rows begin at 50.
  EXPECT_EQ(get_answer(*load("llava_original"), make_record(box)), "[0.25, 0.35, 0.75, 0.55]");
  EXPECT_EQ(get_answer(*load("qwen3_vl_images"), make_record({50, 20})), "[250, 200]");
}

TEST_F(ObjectWriterTest, WritesNames) {
  io::Record record = make_record({50, 20, 150, 60}, "A box: <bbox>");
  record.objects.insert(record.objects.begin(), {.turn_index = 1, .range = {2, 5}, .name = "white box"});
  EXPECT_EQ(get_answer(*load("internvl3_tiles"), record), "A <ref>white box</ref>: <box>[[250, 200, 750, 600]]</box>");
  EXPECT_EQ(get_answer(*load("qwen3_vl_images"), record), "A white box: [250, 200, 750, 600]");
}

TEST_F(ObjectWriterTest, ReplacesOnlyTheNumbersOfTexts) {
  io::Record record = make_record({0.25, 0.2, 0.75, 0.6}, R"({"bbox_2d": [0.25,0.2, 0.75, 0.6]} <bbox>)");
  record.turns[1].text.resize(record.turns[1].text.find(" <bbox>"));
  record.objects[0].unit = io::CoordinateUnit::kNormalized1;
  record.objects[0].range = {12, 33};
  record.objects[0].number_ranges = {{13, 17}, {18, 21}, {23, 27}, {29, 32}};
  EXPECT_EQ(get_answer(*load("qwen3_vl_images"), record), R"({"bbox_2d": [250,200, 750, 600]})");
  EXPECT_EQ(get_answer(*load("gemma3_crops"), record), R"({"bbox_2d": <loc0204><loc0256><loc0614><loc0768>})");
  EXPECT_EQ(get_answer(*load("qwen3_vl_images", {.output = data::BoxOutput::kUnchanged}), record),
            R"({"bbox_2d": [0.25,0.2, 0.75, 0.6]})");
}

TEST_F(ObjectWriterTest, MapsAnswersBackToTheImage) {
  for (const char* name : {"qwen3_vl_images", "qwen2_5_vl_mixed", "llava_original", "gemma3_crops"}) {
    const auto processor = load(name);
    const WrittenRecord written = processor->write_objects(make_record({50, 20, 150, 60}));
    ASSERT_EQ(written.coordinate_maps.size(), 1) << name;
    const CoordinateMap& map = written.coordinate_maps[0];
    const std::string& text = written.turns[1].text;
    std::vector<double> values;
    for (size_t pos = text.find_first_of("0123456789"); pos != std::string::npos;
         pos = text.find_first_of("0123456789", pos)) {
      size_t length = 0;
      values.push_back(std::stod(text.substr(pos), &length));
      pos += length;
    }
    ASSERT_EQ(values.size(), 4) << text;
    if (std::string(name).starts_with("gemma")) values = {values[1], values[0], values[3], values[2]};
    const image::Box box = map.map(values[0], values[1], values[2], values[3]);
    EXPECT_LE(compute_edge_distance(box, {{50, 20}, {150, 60}}), 1.5) << name << ": " << text;
  }
}

TEST_F(ObjectWriterTest, BadBoxesAreBadSamples) {
  const auto processor = load("qwen3_vl_images");
  EXPECT_THAT(
      get_error(*processor, make_record({50, 20, 202, 60})),
      AllOf(HasSubstr("[50, 20, 202, 60] is outside of its image of 200 x 100 pixels"), HasSubstr("data.boxes.in")));
  EXPECT_EQ(get_error(*processor, make_record({-0.5, 0, 200.9, 100})), "");  // tools round outwards
  EXPECT_THAT(get_error(*processor, make_record({20, 50, 60, 150})), HasSubstr("data.boxes.orientation=stored"));
  io::Record thousandths = make_record({50, 20, 150, 1002});
  thousandths.objects[0].unit = io::CoordinateUnit::kNormalized1000;
  EXPECT_EQ(get_error(*processor, thousandths), "");
  thousandths.objects[0].coordinates[3] = 1011;
  EXPECT_THAT(get_error(*processor, thousandths), HasSubstr("outside of its image"));
  io::Record volume = make_record({0, 0, 1, 1});
  volume.images[0].is_volume = true;
  EXPECT_NE(get_error(*processor, volume), "");
}

TEST_F(ObjectWriterTest, PrivateUseCharactersOfTextsStay) {
  for (const std::string text : {"\xEE\x80\x80"
                                 "0\xEE\x80\x80",
                                 "\xEE\x80\x81"
                                 "0\xEE\x80\x81"}) {
    const io::Record record = make_record({50, 20, 150, 60}, text + " <bbox>");
    EXPECT_EQ(get_answer(*load("qwen3_vl_images"), record), text + " [250, 200, 750, 600]");
    EXPECT_EQ(get_error(*load("qwen3_vl_images"), record), "");
  }
}

TEST_F(ObjectWriterTest, UnchangedNumbersOfGemmaAreAList) {
  EXPECT_EQ(get_answer(*load("gemma3_crops", {.output = data::BoxOutput::kUnchanged}), make_record({10, 20, 100, 50})),
            "[10, 20, 100, 50]");
}

TEST_F(ObjectWriterTest, TemplatesThatRepeatABoxAreRefused) {
  const CheckpointCopy copy("qwen3_vl_images");
  for (const char* name : {"chat_template.json", "chat_template.jinja"}) std::filesystem::remove(copy.path() / name);
  io::write_file(
      copy.path() / "chat_template.jinja",
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for part in m.content %}{% if part.type == 'image' %}"
      "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% if m.role == 'user' %} "
      "{{ part.text }}{% endif %}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  const auto processor = load_processor(copy.path(), copy.origin().processor_settings());
  io::Record record = make_record({50, 20, 150, 60});
  record.turns[0].text += " In <bbox>?";
  record.turns[1].text = "A box.";
  record.objects[0].turn_index = 0;
  record.objects[0].range = {18, 24};
  EXPECT_EQ(record.turns[0].text.substr(18, 6), "<bbox>");
  EXPECT_THAT(get_error(*processor, record), HasSubstr("writes a box more than once"));
}

TEST_F(ObjectWriterTest, RenderedTextHasTheBoxes) {
  const text::RenderedChat chat = load("qwen3_vl_images")->render(make_record({50, 20, 150, 60}), /*as_prompt=*/false);
  EXPECT_THAT(chat.text, HasSubstr("[250, 200, 750, 600]"));
  ASSERT_EQ(chat.answers.size(), 1);
  EXPECT_THAT(chat.text.substr(chat.answers[0].begin, chat.answers[0].end - chat.answers[0].begin),
              testing::StartsWith("[250, 200, 750, 600]"));
}

}  // namespace
}  // namespace vlmtrain::models
