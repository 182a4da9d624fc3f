#include "vlmtrain/image/mask.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "image/mask_rows.h"
#include "image/reference_files.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/decode.h"

namespace vlmtrain::image {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

const std::filesystem::path kMasks = kImageData / "masks";

json mask_goldens(const char* kind) {
  return file_json(kMasks / "masks.json").at(kind);
}

io::Medium medium_of_bytes(const std::string& name, size_t size) {
  const std::vector<std::byte> bytes = file_bytes(kMasks / name);
  io::Medium medium(name);
  medium.bytes = std::make_shared<const std::string>(reinterpret_cast<const char*>(bytes.data()), size);
  return medium;
}

auto tells(const char* what, const char* more = "") {
  return ThrowsMessage<UserError>(AllOf(HasSubstr(what), HasSubstr(more)));
}

Rle parsed(const char* text) {
  return parse_rle(json::parse(text));
}

TEST(Mask, IsWhatStandsInThePng) {
  const json cases = mask_goldens("files");
  ASSERT_GT(cases.size(), 50U);
  for (const json& entry : cases) {
    SCOPED_TRACE(entry.at("file").dump() + " of value " + entry.at("value").dump());
    const std::filesystem::path path = kMasks / entry.at("file").get<std::string>();
    const json& value = entry.at("value");
    const at::Tensor mask = decode_mask(path, value.is_null() ? std::nullopt : std::optional(value.get<int64_t>()));
    EXPECT_EQ(rows_of(mask), entry.at("mask").get<std::vector<std::string>>());
    EXPECT_TRUE(mask.is_contiguous());
    EXPECT_EQ(read_image_size(path), (ImageSize{mask.size(0), mask.size(1)}));
    EXPECT_EQ(read_mask_size(path, {}), (ImageSize{mask.size(0), mask.size(1)}));
  }
}

TEST(Mask, OfBytesIsThatOfTheFile) {
  const io::Medium medium = medium_of_bytes("grey.png", file_bytes(kMasks / "grey.png").size());
  EXPECT_TRUE(at::equal(decode_mask(medium, 254), decode_mask(kMasks / "grey.png", 254)));
}

TEST(Mask, WhoseShapeIsItsTransparencyIsRefused) {
  // White everywhere, and a square in the alpha channel.
  EXPECT_THAT([] { decode_mask(kMasks / "shape_in_alpha.png", {}); },
              tells("a shape in its transparency", "alpha channel by itself"));
}

TEST(Mask, TurnsAsItsPictureDoes) {
  const at::Tensor picture = decode_image(kMasks / "orientation_6.png");
  EXPECT_TRUE(at::equal(decode_mask(kMasks / "orientation_6.png", 255), picture[0].eq(255).to(at::kByte)));
}

TEST(Mask, OtherFormatsAreRefused) {
  EXPECT_THAT([] { decode_mask(kMasks / "lossy.jpg", {}); }, tells("JPEG", "save the mask as PNG"));
  EXPECT_THAT([] { decode_mask(kMasks / "lossless.webp", {}); }, tells("WebP", "convert it to PNG"));
  EXPECT_THAT([] { decode_mask(kMasks / "SOURCES.md", {}); }, tells("not a JPEG, PNG or WebP"));
  EXPECT_THAT([] { decode_mask("no/such/mask.png", {}); }, tells("no/such/mask.png", "cannot be opened"));
}

TEST(Mask, AValueThatNoPixelCanHaveIsRefused) {
  EXPECT_THAT([] { decode_mask(kMasks / "bilevel.png", 255); }, tells("value 255", "1 bits a pixel, values of 0 to 1"));
  EXPECT_THAT([] { decode_mask(kMasks / "grey.png", 256); }, tells("value 256", "0 to 255"));
  EXPECT_THAT([] { decode_mask(kMasks / "grey.png", -1); }, tells("value -1"));
  EXPECT_THAT([] { decode_mask(kMasks / "grey_16_bit.png", 65536); }, tells("0 to 65535"));
  EXPECT_THAT([] { decode_mask(kMasks / "rgb.png", 1); }, tells("value 1", "RGB"));
}

/// Of what its first bytes tell, nobody has to wait until it is decoded.
TEST(Mask, IsJudgedByItsHeader) {
  EXPECT_THAT([] { read_mask_size(kMasks / "lossy.jpg", {}); }, tells("JPEG", "save the mask as PNG"));
  EXPECT_THAT([] { read_mask_size(kMasks / "bilevel.png", 255); }, tells("value 255", "values of 0 to 1"));
  EXPECT_THAT([] { read_mask_size(kMasks / "rgb.png", 1); }, tells("value 1", "RGB"));
  EXPECT_EQ(read_mask_size(kMasks / "palette_4.png", 15), read_image_size(kMasks / "palette_4.png"));
  EXPECT_EQ(read_mask_size(kMasks / "grey_alpha.png", 254), read_image_size(kMasks / "grey_alpha.png"));
}

TEST(Mask, ACutOffFileIsRefused) {
  const size_t whole = file_bytes(kMasks / "palette_8.png").size();
  const std::vector<std::string> rows = rows_of(decode_mask(kMasks / "palette_8.png", {}));
  constexpr size_t kTail = 24;  // a checksum and the end marker
  for (size_t size = 0; size + kTail < whole; ++size) {
    EXPECT_THROW(decode_mask(medium_of_bytes("palette_8.png", size), {}), UserError) << size;
  }
}

/// A changed byte gives a mask of the size that the header tells or a data error, nothing else.
TEST(Mask, DamagedFilesNeverGetThrough) {
  for (const char* name : {"grey_4_bit.png", "grey_16_bit.png", "palette_interlaced.png", "rgba.png"}) {
    const io::Medium whole = medium_of_bytes(name, file_bytes(kMasks / name).size());
    for (size_t i = 0; i < whole.bytes->size(); ++i) {
      std::string damaged = *whole.bytes;
      damaged[i] = static_cast<char>(~damaged[i]);
      io::Medium medium(name);
      medium.bytes = std::make_shared<const std::string>(damaged);
      try {
        const at::Tensor mask = decode_mask(medium, {});
        EXPECT_EQ(read_image_size(medium), (ImageSize{mask.size(0), mask.size(1)}));
      } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kBadData) << error.what();
      }
    }
  }
}

TEST(Rle, IsThatOfPycocotools) {
  for (const json& entry : mask_goldens("rles")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const auto& size = entry.at("size");
    const Rle rle = parse_rle({{"size", size}, {"counts", entry.at("counts")}});
    EXPECT_EQ(parse_rle({{"size", size}, {"counts", entry.at("string")}}), rle);
    EXPECT_EQ(compressed_counts(rle), entry.at("string").get<std::string>());
    const at::Tensor mask = decode_rle(rle);
    EXPECT_EQ(mask.sizes().vec(), size.get<std::vector<int64_t>>());
    EXPECT_EQ(crc32_of(mask), entry.at("crc32"));
    if (entry.contains("mask")) {
      EXPECT_EQ(rows_of(mask), entry.at("mask").get<std::vector<std::string>>());
    }
    EXPECT_EQ(encode_rle(mask), rle);
    EXPECT_EQ(encode_rle(mask * 255), rle);
  }
}

TEST(Rle, RunsOfNoPixelAreTaken) {
  EXPECT_EQ(rows_of(decode_rle(parsed(R"({"size": [2, 2], "counts": [1, 0, 0, 2, 1]})"))),
            (std::vector<std::string>{"01", "10"}));
}

TEST(Rle, RunsThatDoNotFillTheMaskAreRefused) {
  EXPECT_THAT([] { parsed(R"({"size": [3, 4], "counts": [5, 6]})"); }, tells("fill only 11", "4 x 3"));
  EXPECT_THAT([] { parsed(R"({"size": [3, 4], "counts": [5, 8]})"); }, tells("fill 13 pixels", "has 12"));
  EXPECT_THAT([] { parsed(R"({"size": [3, 4], "counts": []})"); }, tells("fill only 0"));
  EXPECT_THAT([] { parsed(R"({"size": [3, 4], "counts": ""})"); }, tells("fill only 0"));
}

TEST(Rle, MalformedCountsAreRefused) {
  EXPECT_THAT([] { parsed(R"({"size": [3, 4], "counts": [13, -1]})"); }, tells("run 2", "negative length -1"));
  EXPECT_THAT([] { parsed(R"({"size": [3, 4], "counts": [18446744073709551615]})"); }, tells("run 1", "limit"));
  EXPECT_THAT([] { parsed(R"({"size": [3, 4], "counts": [1.5]})"); }, tells("1.5", "not a whole number"));
  EXPECT_THAT([] { parsed(R"({"size": [3, 4], "counts": 12})"); }, tells("no \"counts\""));
  EXPECT_THAT([] { parsed(R"({"size": [3, 4]})"); }, tells("no \"counts\""));
  EXPECT_THAT([] { parsed(R"([[1, 2, 3, 4, 5, 6]])"); }, tells("polygons", "frPyObjects"));
  EXPECT_THAT([] { parsed(R"("12")"); }, tells("not a JSON object"));
}

TEST(Rle, MalformedStringsAreRefused) {
  EXPECT_THAT([] { parsed(R"({"size": [3, 4], "counts": "5 7"})"); },
              tells("character \" \" at place 2", "pycocotools"));
  EXPECT_THAT([] { parsed(R"({"size": [3, 4], "counts": "5p"})"); }, tells("character \"p\" at place 2"));
  EXPECT_THAT([] { parsed(R"({"size": [3, 4], "counts": "5ü"})"); }, tells("at place 2"));
  EXPECT_THAT([] { parsed(R"({"size": [3, 4], "counts": "5P"})"); }, tells("cut off"));
  EXPECT_THAT([] { parsed(R"({"size": [3, 4], "counts": "oooooooo0"})"); }, tells("more than 7 characters"));
  EXPECT_THAT([] { parsed(R"({"size": [3, 4], "counts": "O"})"); }, tells("run 1", "negative length -1"));
  // The fourth count is told as the difference to the second.
  EXPECT_THAT([] { parsed(R"({"size": [3, 4], "counts": "111N"})"); }, tells("run 4", "negative length -1"));
}

TEST(Rle, AnyStringGivesAMaskOrADataError) {
  std::mt19937 random(6);
  int taken = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (unsigned i = 0; i <= random() % 4; ++i) text += static_cast<char>('0' + random() % (round % 2 == 0 ? 13 : 64));
    try {
      const Rle rle = parse_rle({{"size", {3, 4}}, {"counts", text}});
      EXPECT_EQ(decode_rle(rle).numel(), 12);
      EXPECT_EQ(parse_rle({{"size", {3, 4}}, {"counts", compressed_counts(rle)}}), rle);
      ++taken;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData) << error.what();
    }
  }
  EXPECT_GT(taken, 100);
}

TEST(Rle, SizesThatCannotBeAreRefused) {
  EXPECT_THAT([] { parsed(R"({"counts": [12]})"); }, tells("no \"size\"", "add"));
  EXPECT_THAT([] { parsed(R"({"size": [12], "counts": [12]})"); }, tells("no \"size\""));
  EXPECT_THAT([] { parsed(R"({"size": [0, 4], "counts": []})"); }, tells("has 0", "at least 1"));
  EXPECT_THAT([] { parsed(R"({"size": [-3, 4], "counts": [12]})"); }, tells("has -3"));
  EXPECT_THAT([] { parsed(R"({"size": [3.0, 4], "counts": [12]})"); }, tells("has 3.0"));
  EXPECT_THAT([] { parsed(R"({"size": [100000, 100000], "counts": [10000000000]})"); },
              tells("100000 x 100000", "shrink"));
  EXPECT_THAT([] { parsed(R"({"size": [18446744073709551615, 2], "counts": [2]})"); }, tells("beyond the limit"));
}

}  // namespace
}  // namespace vlmtrain::image
