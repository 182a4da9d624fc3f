#!/usr/bin/env python3
"""Holds bench/step_parts.py and bench/kernel_times.py against a small recording of Qwen2.5-VL-3B with LoRA: names and grids as
the virtual GPU and cuBLAS of an H200 have them.

    step_parts_test.py CHECKOUT
"""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv.pop(1)) / "bench"))

import kernel_times  # noqa: E402
import step_parts  # noqa: E402
from step_parts import Launch, Product  # noqa: E402

TOKENS, PATCHES, IMAGES, RANK = 19424, 63936, 16, 16
CONFIG = {"hidden_size": 2048, "num_attention_heads": 16,
          "vision_config": {"hidden_size": 1280, "num_heads": 16, "patch_size": 14, "temporal_patch_size": 2, "in_chans": 3}}
SHAPES = step_parts.Shapes.of(CONFIG, RANK, IMAGES)

FLASH = "_ZN13pytorch_flash16flash_fwd_kernelI23Flash_fwd_kernel_traitsILi{}ELi128ELi64ELi4ELb0ELb0EN7cutlass10bfloat16_tEEEEvv"
GATE = "_ZN8vlmtrain7kernels12_GLOBAL__N_131gated_activation_forward_kernelINS0_4SiluE13__nv_bfloat16Li{}EEEvPKT0_PS5_l"
NORM = "_ZN8vlmtrain7kernels12_GLOBAL__N_114forward_kernelI13__nv_bfloat16Li8ELi4EEEvNS0_11NormForwardE"
ADAMW = "_ZN8vlmtrain7kernels12_GLOBAL__N_112adamw_kernelINS1_11Fp32MomentsE13__nv_bfloat16EEvNS0_5AdamWE"
FILL = "_ZN2at6native4fillEv"
NVJET = "nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_TNT"
NARROW = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_32x4_tn_align4>(cutlass_80::Params)"
XMMA = "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_stage4_warpsize2x2x1_tensor16x8x16_kernel"
REDUCE = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(cublasLt::cublasSplitKParams)"
PERSISTENT = (132, 1, 1)

# Each line: what the virtual GPU records; the kernels of the GPU with microseconds; the part they belong to.
STEP = [
    (Product(1280, PATCHES, 1176), [(NVJET, 300)], step_parts.BASE),
    (Launch(NORM, (PATCHES, 1, 1)), 90, step_parts.NORMS),
    (Product(3840, PATCHES, 1280), [(NVJET, 900)], step_parts.BASE),
    (Product(48, PATCHES, 1280), [(NVJET, 70)], step_parts.LORA),
    (Launch(FLASH.format(96), (1, 1120, 16)), 800, step_parts.WINDOWS),
    (Launch(FLASH.format(96), (32, 16, 16)), 7000, step_parts.FULL_ATTENTION),
    (Launch(GATE.format(4), (PATCHES, 4, 1)), 400, step_parts.TOWER_GATE),
    (Product(1280, PATCHES, 3420), [(NARROW, 2400)], step_parts.NARROW_BASE),
    (Product(16, PATCHES, 3420), [(NARROW, 500)], step_parts.NARROW_LORA),
    (Launch(FLASH.format(128), (19, 8, 16)), 600, step_parts.TEXT_ATTENTION),
    (Launch(GATE.format(8), (TOKENS, 6, 1)), 350, step_parts.TEXT_GATE),
    (Product(2048, TOKENS, 11008), [(NVJET, 1100)], step_parts.BASE),
    (Product(16, 11008, TOKENS), [(XMMA, 60), (REDUCE, 5)], step_parts.LORA),
]
UPDATE = Launch(ADAMW, (155, 1, 1))


def count_launches(lines):
    launches = []
    for recorded, kernels, _ in lines:
        if isinstance(recorded, Launch):
            launches.append(recorded._replace(nanoseconds=kernels * 1000))
        else:
            launches += [Launch(name, PERSISTENT, microseconds * 1000) for name, microseconds in kernels]
    return launches


def find_parts(lines):
    return [part for recorded, kernels, part in lines for _ in ([0] if isinstance(recorded, Launch) else kernels)]


RECORD = [recorded for recorded, _, _ in STEP]


class Parts(unittest.TestCase):
    def test_each_kernel_has_its_part(self):
        summary = step_parts.separate(count_launches(STEP), RECORD, SHAPES)
        self.assertEqual([part for part, _ in summary], find_parts(STEP))

    def test_sums_and_rates(self):
        summary = step_parts.summarize(count_launches(STEP), RECORD, SHAPES)
        self.assertEqual((summary["products_matched"], summary["products_launched"]), (7, 7))
        base = summary["parts"][step_parts.BASE]
        self.assertAlmostEqual(base["ms"], 2.3)
        flops = 2 * (1280 * PATCHES * 1176 + 3840 * PATCHES * 1280 + 2048 * TOKENS * 11008)
        self.assertAlmostEqual(base["tflops"], flops / 2.3e-3 / 1e12, places=3)
        self.assertAlmostEqual(summary["parts"][step_parts.LORA]["ms"], 0.135)  # the reduction is its product's
        whole = sum(each.nanoseconds for each in count_launches(STEP)) / 1e6
        self.assertAlmostEqual(sum(part["ms"] for part in summary["parts"].values()), whole)

    def test_products_that_do_not_match_are_not_separated(self):
        """Where the GPU has a product more than the record, no size is assigned."""
        more = count_launches(STEP)
        more.insert(8, Launch(NARROW, PERSISTENT, 1000))
        summary = step_parts.summarize(more, RECORD, SHAPES)
        self.assertEqual((summary["products_matched"], summary["products_launched"]), (5, 8))
        self.assertNotIn(step_parts.NARROW_LORA, summary["parts"])
        self.assertEqual(summary["parts"][step_parts.UNKNOWN_PRODUCTS]["launches"], 3)

    def test_products_that_do_not_match_have_the_part_of_their_name_and_grid(self):
        again = STEP + STEP[6:9]
        more = count_launches(again)
        more.insert(8, Launch(NARROW, (64, 2, 1), 1000))
        summary = step_parts.separate(more, [recorded for recorded, _, _ in again], SHAPES)
        self.assertEqual([part for part, _ in summary[7:10]], [step_parts.NARROW_BASE, step_parts.UNKNOWN_PRODUCTS, step_parts.NARROW_BASE])

    def test_a_launch_that_only_one_side_has_costs_its_neighbors_alone(self):
        text_attention = RECORD[9]
        summary = step_parts.match_products(count_launches(STEP), [item for item in RECORD if item is not text_attention])
        self.assertEqual(sum(size is not None for size in summary), 6)
        self.assertEqual(summary[0], RECORD[0])

    def test_without_a_record_only_products_are_not_separated(self):
        summary = [part for part, _ in step_parts.separate(count_launches(STEP), None, SHAPES)]
        expected = [step_parts.UNKNOWN_PRODUCTS if part in step_parts.PRODUCTS else part for part in find_parts(STEP)]
        self.assertEqual(summary, expected)

    def test_towers_with_the_text_s_head_size_are_told_apart_by_segments(self):
        shapes = SHAPES._replace(vision_head=128)
        name = FLASH.format(128)
        summary = [step_parts.part_of_attention(name, (19, segments, 16), shapes) for segments in (8, 16, 1120)]
        self.assertEqual(summary, [step_parts.TEXT_ATTENTION, step_parts.FULL_ATTENTION, step_parts.WINDOWS])


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name) / "times.txt"

    def write(self, launches, with_grid=True):
        """Writes updates before and after the launches; between updates lie at least 500 kernels."""
        filler = [Launch(FILL, (1, 1, 1), 0)] * kernel_times.BETWEEN_STEPS
        everything = [UPDATE, *filler, UPDATE, *filler, *launches, UPDATE]
        names, lines, now = {}, [], 1000
        for launch in everything:
            if launch.name not in names:
                names[launch.name] = len(names)
                lines.append(f"N {names[launch.name]} {launch.name}")
            sizes = " ".join(map(str, launch.grid)) + " 128 1 1"
            lines.append(f"K {names[launch.name]} {now} {now + launch.nanoseconds}" + (" " + sizes if with_grid else ""))
            now += launch.nanoseconds + 10
        self.path.write_text("\n".join(lines) + "\nK 0 12")

    def test_files_with_grids(self):
        self.write(count_launches(STEP))
        launches, wall = step_parts.read_times(self.path)
        self.assertEqual(len(launches), kernel_times.BETWEEN_STEPS + len(count_launches(STEP)) + 1)
        self.assertEqual([each.grid for each in launches[-3:]], [PERSISTENT, PERSISTENT, (155, 1, 1)])
        self.assertGreater(wall, sum(each.nanoseconds for each in launches))
        filled = [Launch(FILL, (1, 1, 1))] * kernel_times.BETWEEN_STEPS + RECORD + [UPDATE]
        self.assertEqual(step_parts.summarize(launches, filled, SHAPES)["products_matched"], 7)

    def test_files_without_grids_are_read(self):
        self.write(count_launches(STEP), with_grid=False)
        names, kernels = kernel_times.read(self.path)
        step, wall = kernel_times.last_step(names, kernels)
        self.assertEqual(len(step), kernel_times.BETWEEN_STEPS + len(count_launches(STEP)) + 1)
        self.assertEqual(step[0].grid, ())

    def test_records(self):
        record = Path(self.folder.name) / "record.txt"
        lines = ["allocate memory 2097152", f"launch 155,1,1 256,1,1 0 {ADAMW}"]
        step = ["copy to pinned memory 16", f"launch 32,16,16 128,1,1 98304 {FLASH.format(96)}", "product 1280 63936 3420 1 14 14",
                "wait for an event"]
        filler = [f"launch 1,1,1 128,1,1 0 {FILL}"] * kernel_times.BETWEEN_STEPS
        record.write_text("\n".join(lines + filler + lines + filler + step + lines) + "\n")
        summary = step_parts.read_record(record)
        self.assertEqual(summary[-3:], [Launch(FLASH.format(96), (32, 16, 16)), Product(1280, PATCHES, 3420), UPDATE])
        self.assertEqual(len(summary), kernel_times.BETWEEN_STEPS + 3)


if __name__ == "__main__":
    unittest.main()
