#include "vlmtrain/image/decode.h"

#include <sys/stat.h>
#include <zlib.h>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>
#include <thread>

#include "image/header.h"
#include "image/png_texts.h"
#include "image/reference_files.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/encode.h"
#include "vlmtrain/image/video.h"

namespace vlmtrain::image {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

std::filesystem::path scratch(const std::string& name) {
  return std::filesystem::path(testing::TempDir()) / name;
}

/// A PNG whose header tells a size, and nothing else.
std::vector<std::byte> png_header(uint32_t width, uint32_t height) {
  std::vector<std::byte> bytes = file_bytes(kImageData / "rgb.png");
  for (int i = 0; i < 4; ++i) {
    bytes[16 + i] = static_cast<std::byte>(width >> (24 - 8 * i));
    bytes[20 + i] = static_cast<std::byte>(height >> (24 - 8 * i));
  }
  return bytes;
}

TEST(Decode, IsBitEqualToPillow) {
  const std::vector<std::byte> expected = file_bytes(kImageData / "decoded.bin");
  const nlohmann::json cases = file_json(kImageData / "decode.json");
  ASSERT_GT(cases.size(), 30U);
  for (const auto& entry : cases) {
    SCOPED_TRACE(entry.at("file").get<std::string>());
    const at::Tensor picture = decode_image(kImageData / entry.at("file").get<std::string>());
    ASSERT_EQ(picture.sizes().vec(), (std::vector<int64_t>{3, entry.at("height"), entry.at("width")}));
    const std::byte* reference = expected.data() + entry.at("offset").get<size_t>();
    EXPECT_EQ(first_difference(tensor_bytes(picture), reference, picture.nbytes()), -1);
  }
}

TEST(EncodePng, KeepsEveryByte) {
  const at::Tensor picture = decode_image(kImageData / "rgb.png");
  const std::string encoded = encode_png(picture);
  EXPECT_TRUE(at::equal(decode_image(std::as_bytes(std::span(encoded)), "encoded"), picture));
}

TEST(Decode, HeaderTellsTheSizeOfTheUprightPicture) {
  for (const auto& entry : file_json(kImageData / "decode.json")) {
    SCOPED_TRACE(entry.at("file").get<std::string>());
    const ImageSize size = read_image_size(kImageData / entry.at("file").get<std::string>());
    EXPECT_EQ(size, (ImageSize{entry.at("height"), entry.at("width")}));
  }
}

TEST(Decode, SixteenBitGreyKeepsItsUpperByte) {
  const at::Tensor picture = decode_image(kImageData / "grey_16_bit.png");
  ASSERT_EQ(picture.numel(), 3 * 64);
  const uint8_t* values = picture.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < picture.numel(); ++i) EXPECT_EQ(values[i], i % 64 * 4) << i;
}

TEST(Decode, WhatIsTransparentLiesOnWhite) {
  // The first pixel's alpha is 0.
  const at::Tensor picture = decode_image(kImageData / "rgba.png");
  for (int64_t channel = 0; channel < 3; ++channel) EXPECT_EQ(picture[channel][0][0].item<int>(), 255);
}

/// Wherever a file is cut off, it is refused: no byte of the picture is ever made up. The last bytes hold no pixels
/// (an end marker, a checksum, padding), so there either answer is right as long as the pixels are.
TEST(Decode, RefusesACutOffFile) {
  for (const std::string name : {"rgb.jpg", "progressive.jpg", "restarts.jpg", "cmyk.jpg", "rgb.png", "interlaced.png",
                                 "palette_4.png", "rgb.webp", "lossless.webp", "alpha.webp"}) {
    const std::vector<std::byte> whole = file_bytes(kImageData / name);
    const std::vector<std::byte> pixels = tensor_bytes(decode_image(whole, name));
    constexpr size_t kTail = 24;
    for (size_t size = 0; size < whole.size(); ++size) {
      try {
        const at::Tensor picture = decode_image(std::span(whole).first(size), name);
        EXPECT_GE(size + kTail, whole.size()) << name << " cut to " << size;
        EXPECT_EQ(tensor_bytes(picture), pixels) << name << " cut to " << size;
      } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kBadData);
        EXPECT_THAT(error.what(), HasSubstr(name));
      }
    }
  }
}

TEST(Decode, TellsWhyAFileIsRefused) {
  std::vector<std::byte> jpeg = file_bytes(kImageData / "rgb.jpg");
  jpeg.resize(jpeg.size() * 3 / 4);
  EXPECT_THAT([&] { decode_image(jpeg, "scan.jpg"); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("scan.jpg"), HasSubstr("Premature end"))));
  std::vector<std::byte> png = file_bytes(kImageData / "rgb.png");
  png[png.size() / 2] ^= std::byte{0x10};
  EXPECT_THAT([&] { decode_image(png, "scan.png"); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("scan.png"), HasSubstr("IDAT"))));
  const std::string gif = "GIF89a and so on";
  EXPECT_THAT([&] { decode_image(std::as_bytes(std::span(gif)), "scan.gif"); },
              ThrowsMessage<UserError>(HasSubstr("not a JPEG, PNG or WebP")));
  EXPECT_THAT([] { decode_image("no/such/picture.png"); }, ThrowsMessage<UserError>(HasSubstr("no/such/picture.png")));
  EXPECT_THAT([] { read_image_size("no/such/picture.png"); }, ThrowsMessage<UserError>(HasSubstr("cannot be opened")));
}

TEST(Decode, ACutOffJpegWithAnEndMarkerIsRefused) {
  std::vector<std::byte> jpeg = file_bytes(kImageData / "rgb.jpg");
  jpeg.resize(jpeg.size() * 3 / 4);
  jpeg.insert(jpeg.end(), {std::byte{0xFF}, std::byte{0xD9}});
  EXPECT_THROW(decode_image(jpeg, "scan.jpg"), UserError);
}

TEST(Decode, RefusesDecompressionBombs) {
  const std::filesystem::path path = scratch("bomb.png");
  write_file(path, png_header(100'000, 100'000));
  EXPECT_THAT([&] { read_image_size(path); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("100000 x 100000"), HasSubstr("shrink"))));
  EXPECT_THROW(decode_image(path), UserError);
  write_file(path, png_header(0, 5));
  EXPECT_THROW(read_image_size(path), UserError);
}

/// tests/image/data/SOURCES.md
TEST(Decode, OrientationsCountAsPillowsDo) {
  const std::filesystem::path folder = kImageData / "orientations";
  const nlohmann::json cases = file_json(folder / "orientations.json").at("cases");
  ASSERT_GT(cases.size(), 35U);
  for (const auto& [name, value] : cases.items()) {
    FileSource source(folder / name);
    EXPECT_EQ(static_cast<int>(read_header(source, name).orientation), value.get<int>()) << name;
  }
}

TEST(Decode, MetadataThatInflateWithoutEndAreNotRead) {
  // "XML:com.adobe.xmp", compressed: 64 MB of spaces, then an orientation.
  std::string text(64 << 20, ' ');
  text += "tiff:Orientation=\"6\"";
  std::vector<uint8_t> packed(compressBound(text.size()));
  uLongf size = packed.size();
  ASSERT_EQ(compress(packed.data(), &size, reinterpret_cast<const Bytef*>(text.data()), text.size()), Z_OK);
  const std::string_view key("XML:com.adobe.xmp\0\0", 19);
  std::vector<uint8_t> chunk(key.begin(), key.end());
  chunk.insert(chunk.end(), packed.begin(), packed.begin() + static_cast<std::ptrdiff_t>(size));
  PngTexts texts;
  texts.add("zTXt", chunk);
  EXPECT_EQ(texts.orientation(), Orientation::kUpright);
}

// Found by the fuzz target `picture`, whose sanitizer stopped at memcpy's null pointer.
TEST(Decode, AnEmptyExifChunkIsNone) {
  const std::vector<std::byte> whole = file_bytes(kImageData / "rgb.png");
  constexpr std::ptrdiff_t kBehindSize = 33;
  constexpr uint8_t kChunk[] = {0, 0, 0, 0, 'e', 'X', 'I', 'f'};
  std::vector<uint8_t> chunk(std::begin(kChunk), std::end(kChunk));
  const uLong sum = crc32(0, chunk.data() + 4, 4);
  for (const int shift : {24, 16, 8, 0}) chunk.push_back(static_cast<uint8_t>(sum >> shift));
  std::vector<std::byte> with_chunk(whole.begin(), whole.begin() + kBehindSize);
  for (const uint8_t byte : chunk) with_chunk.push_back(std::byte{byte});
  with_chunk.insert(with_chunk.end(), whole.begin() + kBehindSize, whole.end());
  EXPECT_TRUE(decode_image(with_chunk, "empty.png").equal(decode_image(whole, "rgb.png")));
}

TEST(Decode, AJpegOfThousandsOfScansIsRefused) {
  const std::vector<std::byte> whole = file_bytes(kImageData / "progressive.jpg");
  // The first scan, over and over: it alone does not build on those before it.
  const auto is_marker = [&](size_t at, auto wanted) {
    return whole[at] == std::byte{0xFF} && wanted(std::to_integer<int>(whole[at + 1]));
  };
  size_t begin = 0;
  while (!is_marker(begin, [](int kind) { return kind == 0xDA; })) ++begin;
  size_t end = begin + 2;
  while (!is_marker(end, [](int kind) { return kind == 0xC4 || kind == 0xDA; })) ++end;
  const auto first = whole.begin() + static_cast<std::ptrdiff_t>(begin);
  const auto last = whole.begin() + static_cast<std::ptrdiff_t>(end);
  std::vector<std::byte> bomb(whole.begin(), last);
  for (int i = 0; i < 500; ++i) bomb.insert(bomb.end(), first, last);
  bomb.insert(bomb.end(), last, whole.end());
  EXPECT_THAT([&] { decode_image(bomb, "bomb.jpg"); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("bomb.jpg"), HasSubstr("scan"), HasSubstr("101"))));
}

/// A changed byte gives a picture or a data error, nothing else. (The sanitizer build looks deeper.)
TEST(Decode, DamagedFilesNeverGetThrough) {
  for (const std::string name : {"orientation_6.jpg", "progressive.jpg", "palette_alpha.png", "orientation_8.png",
                                 "orientation_6.webp", "alpha.webp"}) {
    const std::vector<std::byte> whole = file_bytes(kImageData / name);
    for (size_t i = 0; i < whole.size(); i += 3) {
      std::vector<std::byte> damaged = whole;
      damaged[i] ^= std::byte{0xFF};
      try {
        EXPECT_EQ(decode_image(damaged, name).size(0), 3);
      } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kBadData) << error.what();
      }
    }
  }
}

TEST(Decode, ThreadsDoNotDisturbEachOther) {
  const std::vector<std::byte> good = file_bytes(kImageData / "rgb.jpg");
  std::vector<std::byte> bad = good;
  bad.resize(bad.size() / 2);
  const std::vector<std::byte> pixels = tensor_bytes(decode_image(good, "good"));
  std::vector<std::jthread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        EXPECT_THROW(decode_image(bad, "bad"), UserError);
        EXPECT_EQ(tensor_bytes(decode_image(good, "good")), pixels);
      }
    });
  }
}

TEST(Decode, WhatIsNoFileIsRefusedWithoutBeingOpened) {
  const auto pipe = scratch("pipe.png");
  std::filesystem::remove(pipe);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);  // who opens it waits for ever
  const auto refused = [](const char* kind) {
    return ThrowsMessage<UserError>(AllOf(HasSubstr("the picture cannot be opened"), HasSubstr(kind)));
  };
  EXPECT_THAT([&] { decode_image(pipe); }, refused("it is a named pipe"));
  EXPECT_THAT([&] { read_image_size(pipe); }, refused("it is a named pipe"));
  EXPECT_THAT([&] { decode_image("/dev/zero"); }, refused("it is a device"));
  EXPECT_THAT([&] { decode_image(testing::TempDir()); }, refused("it is a folder"));
  EXPECT_THAT([&] { VideoFile video(pipe); }, ThrowsMessage<UserError>(HasSubstr("it is a named pipe")));
  std::filesystem::remove(pipe);
}

}  // namespace
}  // namespace vlmtrain::image
