#include "vlmtrain/memory/libtorch.h"

#include <gtest/gtest.h>

#include <vector>

#include "io/temporary_folder.h"
#include "vlmtrain/memory/device_copy.h"

namespace vlmtrain::memory {

namespace {

TEST(LibTorchTest, DescribesLoadedLibrary) {
  const LibTorchInfo actual = get_libtorch_info();
  EXPECT_EQ(actual.loaded_version, actual.compiled_version) << "what the library says of itself";
  EXPECT_TRUE(actual.matches_compiled_version());
  EXPECT_EQ(actual.cpu_library.filename(), "libtorch_cpu.so");
  EXPECT_TRUE(std::filesystem::exists(actual.cpu_library));
  EXPECT_EQ(actual.cpu_library.parent_path(), actual.c10_library.parent_path());
  EXPECT_TRUE(std::filesystem::exists(actual.cuda_library));
}

TEST(LibTorchTest, ParsesVersionFromConfiguration) {
  EXPECT_EQ(parse_torch_version("Build settings: BLAS_INFO=mkl, TORCH_VERSION=2.11.0, USE_CUDA=ON, "), "2.11.0");
  EXPECT_EQ(parse_torch_version("TORCH_VERSION=2.12.0+cu130"), "2.12.0+cu130");
  EXPECT_EQ(parse_torch_version("nothing"), "");
}

TEST(LibTorchTest, DetectsVersionMismatch) {
  EXPECT_FALSE((LibTorchInfo{.compiled_version = "2.11.0", .loaded_version = "2.12.0"}).matches_compiled_version());
  EXPECT_TRUE((LibTorchInfo{.compiled_version = "2.11.0"}).matches_compiled_version()) << "it does not say";
}

class LibrarySourceTest : public io::TemporaryFolderTest {
 protected:
  LibrarySource find_source(const char* library_path, const char* preload,
                            const std::vector<std::filesystem::path>& search_folders) const {
    return find_library_source(folder(), library_path, preload, search_folders);
  }
};

TEST_F(LibrarySourceTest, ReportsMatchingPath) {
  const std::string folder_path = folder().string();
  const std::string path = "/nowhere:" + folder_path;
  EXPECT_EQ(find_source(nullptr, nullptr, {folder()}), LibrarySource::kRpath);
  EXPECT_EQ(find_source(path.c_str(), nullptr, {"/nowhere", folder()}), LibrarySource::kLibraryPath);
  EXPECT_EQ(find_source(path.c_str(), nullptr, {folder(), "/nowhere", folder()}), LibrarySource::kRpath)
      << "which comes first";
  EXPECT_EQ(find_source(nullptr, nullptr, {"/nowhere"}), LibrarySource::kSystem);
  EXPECT_EQ(find_source(nullptr, (folder_path + "/libtorch_cpu.so").c_str(), {folder()}), LibrarySource::kPreload);
  EXPECT_EQ(find_source(nullptr, (folder_path + "/another.so").c_str(), {folder()}), LibrarySource::kRpath);
}

TEST(CopyToDeviceTest, CopiesValuesWithRequestedType) {
  const std::vector<int64_t> values{3, -1, int64_t{1} << 30};
  for (const auto type : {at::kInt, at::kLong}) {
    const at::Tensor copy = copy_to_device(values, at::kCPU, type);
    ASSERT_EQ(copy.scalar_type(), type);
    ASSERT_EQ(copy.sizes(), at::IntArrayRef{3});
    for (int64_t i = 0; i < copy.numel(); ++i) EXPECT_EQ(copy[i].item<int64_t>(), values[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(copy_to_device(std::vector<int64_t>{}, at::kCPU).numel(), 0);
}

TEST(CopyToDeviceTest, MetaTensorsKeepShape) {
  const at::Tensor copy = copy_to_device(std::vector<int64_t>{1, 2}, at::kMeta);
  EXPECT_TRUE(copy.is_meta());
  EXPECT_EQ(copy.scalar_type(), at::kLong);
  EXPECT_EQ(copy.numel(), 2);
}

}  // namespace

}  // namespace vlmtrain::memory
