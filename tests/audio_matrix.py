#!/usr/bin/env python3
"""Checks unusual audio files from ffmpeg and sox: each is decoded like ffmpeg, or refused where allowed.

    cargo build --release -p engram-data --example count_samples
    python3 tests/audio_matrix.py target/release/examples/count_samples

Compares the number of samples at 16 kHz, and the share of the power in the second half, with
`ffmpeg -i FILE -f f32le -ac 1 -ar 16000`, the command of openai-whisper's load_audio. For files where ffmpeg
is wrong, compares the length with the known length in seconds. Of lossless files and Opus, compares all samples
at their own rate, and prints the largest difference of each kind; for Opus, ffmpeg uses libopus, because the
samples of its own decoder differ at changes of the mode. Needs ffmpeg and sox; prints SKIPPED without them.
With KEEP=FOLDER, copies the audio files to this folder.
"""

import array
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile

RATE = 16_000
MP3_TOLERANCE = 4 * 576  # Four MP3 frames at 16 kHz, in samples.

MAX_DIFFERENCE = 1e-3

cases = []  # (path, tolerance in samples, seconds or None, may be refused)
exact = []  # (kind, path, sample rate, tolerance of the length in samples)


def run(*command, **options):
    result = subprocess.run(command, capture_output=True, check=False, **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {result.stderr.decode(errors='replace')[-400:]}")
    return result.stdout


def ffmpeg(path, *arguments, source="speech.wav", before=()):
    run("ffmpeg", "-v", "error", "-nostdin", "-y", *before, "-i", source, *arguments, path)
    return path


def case(path, tolerance=2, seconds=None, refused=False):
    cases.append((path, tolerance, seconds, refused))
    return path


def equal(kind, path, rate=RATE, extra=0):
    """All samples must equal those of ffmpeg."""
    exact.append((kind, path, rate, extra))
    return path


def read(path):
    with open(path, "rb") as file:
        return bytearray(file.read())


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)
    return path


def make_speech():
    """Writes syllables of tones with pauses: 3 s, 2 s and 1.5 s."""
    for name, seconds, pitch in [("speech", 3.0, 210), ("other", 2.0, 330), ("short", 1.5, 150)]:
        samples = array.array("h")
        for i in range(int(RATE * seconds)):
            t = i / RATE
            envelope = max(0.0, math.sin(2 * math.pi * 2.3 * t)) ** 0.5
            tone = sum(math.sin(2 * math.pi * pitch * k * t) / k for k in (1, 2, 3, 5))
            samples.append(int(9000 * envelope * tone / 2))
        data = samples.tobytes()
        header = b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt "
        header += struct.pack("<IHHIIHH", 16, 1, 1, RATE, 2 * RATE, 2, 16)
        write(f"{name}.wav", header + b"data" + struct.pack("<I", len(data)) + data)


def wav():
    plain = read("speech.wav")
    for size in [0, 0x7FFFF000, 0x7FFFF024, 0x7FFFFFFF, 0x80000000, 0x80000024, 0xFFFFFFFF, 0xFFFFFFDB]:
        data = plain[:]
        data[40:44] = struct.pack("<I", size)
        data[4:8] = struct.pack("<I", min(size + 36, 0xFFFFFFFF) if size else 0)
        case(write(f"size_{size:08x}.wav", data))
    data = plain[:]
    data[4:8] = struct.pack("<I", 0)
    case(write("riff_size_0.wav", data))
    data[4:8] = struct.pack("<I", 20)
    case(write("riff_size_20.wav", data))
    data = plain[:]
    data[40:44] = struct.pack("<I", len(plain) - 44 + 4000)
    case(write("declares_more.wav", data), refused=True)
    case(write("cut.wav", plain[:-9001]), refused=True)

    odd = b"LIST" + struct.pack("<I", 5) + b"INFOx\0"
    unpadded = b"LIST" + struct.pack("<I", 5) + b"INFOx"
    unknown = b"bext" + struct.pack("<I", 602) + bytes(602)
    fmt, body = plain[12:36], plain[36:]
    for name, chunks in [
        ("list_before", fmt + odd + body),
        ("list_first", odd + fmt + body),
        ("list_after", fmt + body + odd),
        ("unknown_chunks", unknown + fmt + unknown + body + unknown),
        ("tag_after", fmt + body + b"TAG" + bytes(125)),
        ("zeros_after", fmt + body + bytes(1000)),
    ]:
        case(write(f"{name}.wav", b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks))
    chunks = fmt + unpadded + body
    case(write("unpadded.wav", b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks), seconds=3.0)
    case(write("joined.wav", plain + read("other.wav")), seconds=5.0)
    # The header declares only the first second of three.
    data = plain[:]
    data[40:44] = struct.pack("<I", 2 * RATE)
    case(write("declares_less.wav", data), refused=True)

    for codec in ["pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le", "pcm_alaw", "pcm_mulaw"]:
        case(ffmpeg(f"{codec}.wav", "-c:a", codec), 2)
    case(ffmpeg("stereo_44.wav", "-ac", "2", "-ar", "44100"), 8)
    case(ffmpeg("rate_8000.wav", "-ar", "8000"), 8)
    case(ffmpeg("rate_96000_24.wav", "-ar", "96000", "-c:a", "pcm_s24le"), 8)
    case(ffmpeg("six_channels.wav", "-ac", "6", "-c:a", "pcm_s24le"))
    case(ffmpeg("rf64.wav", "-rf64", "always"))
    case(ffmpeg("sony.w64"))
    for name, arguments in [("wav", ["-f", "wav"]), ("w64", ["-f", "w64"]), ("rf64.wav", ["-f", "wav", "-rf64", "always"])]:
        with open("speech.wav", "rb") as file:
            piped = run("ffmpeg", "-v", "error", "-i", "-", *arguments, "-", stdin=file)
        case(write(f"ffmpeg_pipe.{name}", piped), seconds=3.0)
    case(write("sox_pipe.wav", run("sox", "speech.wav", "-t", "wav", "-", stdin=subprocess.DEVNULL)))
    run("sox", "speech.wav", "-b", "24", "sox24.wav")
    case("sox24.wav")
    run("sox", "speech.wav", "-e", "a-law", "sox_alaw.wav")
    case("sox_alaw.wav")
    run("sox", "speech.wav", "-B", "sox_rifx.wav")
    case("sox_rifx.wav", seconds=3.0)  # ffmpeg 5 decodes noise.
    case(ffmpeg("adpcm.wav", "-c:a", "adpcm_ima_wav"), refused=True)
    case(ffmpeg("mp3_in.wav", "-c:a", "libmp3lame"), refused=True)


def flac():
    for name in ["speech", "other"]:
        ffmpeg(f"{name}.flac", source=f"{name}.wav")
    plain = read("speech.flac")
    case("speech.flac")
    data = plain[:]
    # STREAMINFO: the 36-bit number of samples ends at byte 26.
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    case(write("count_unknown.flac", data))
    data[22:26] = struct.pack(">I", RATE)
    case(write("count_less.flac", data))
    data[22:26] = struct.pack(">I", 4 * RATE)
    case(write("count_more.flac", data), refused=True)
    case(write("joined.flac", plain + read("other.flac")), seconds=5.0)
    case(write("joined_unknown.flac", data[:22] + bytes(4) + data[26:] + read("other.flac")), seconds=5.0)
    ffmpeg("stereo.flac", "-ac", "2", "-ar", "44100")
    case(write("joined_stereo.flac", plain + read("stereo.flac")), 8, seconds=6.0)
    tag = b"ID3\x04\0\0\0\0\x02\0" + bytes(256)
    case(write("id3_before.flac", tag + plain))
    case(write("id3v1_after.flac", plain + b"TAG" + bytes(125)))
    case(write("cut.flac", plain[: len(plain) // 2]), refused=True)
    case(ffmpeg("flac24.flac", "-sample_fmt", "s32", "-ar", "48000"), 8)
    case(ffmpeg("speech.oga", "-c:a", "flac"), refused=True)


def mp3():
    def lame(path, *arguments, source="speech.wav"):
        return ffmpeg(path, "-c:a", "libmp3lame", *arguments, source=source)

    case(lame("cbr.mp3", "-b:a", "64k"), 32)
    case(lame("vbr.mp3", "-q:a", "4"), 32)
    case(lame("stereo_44.mp3", "-ac", "2", "-ar", "44100", "-b:a", "128k"), 32)
    case(lame("rate_8000.mp3", "-ar", "8000", "-b:a", "16k"), 64)
    case(lame("no_info.mp3", "-b:a", "64k", "-write_xing", "0"), MP3_TOLERANCE)
    lame("other.mp3", "-b:a", "64k", source="other.wav")
    lame("other_no_info.mp3", "-b:a", "64k", "-write_xing", "0", source="other.wav")
    plain = read("cbr.mp3")
    case(write("joined.mp3", plain + read("other.mp3")), 32, seconds=5.0)
    case(write("joined_no_info.mp3", read("no_info.mp3") + read("other_no_info.mp3")), MP3_TOLERANCE)
    case(write("joined_info_then_none.mp3", plain + read("other_no_info.mp3")), MP3_TOLERANCE)
    case(write("joined_stereo.mp3", plain + read("stereo_44.mp3")), MP3_TOLERANCE, seconds=6.0)
    case(write("stereo_joined.mp3", read("stereo_44.mp3") + plain), MP3_TOLERANCE, seconds=6.0)
    case(write("joined_thrice.mp3", 3 * plain), 32, seconds=9.0)
    info = plain.find(b"Info")
    for name, count in [("zero", 0), ("less", 20), ("more", 4000)]:
        data = plain[:]
        data[info + 8 : info + 12] = struct.pack(">I", count)
        case(write(f"count_{name}.mp3", data), MP3_TOLERANCE)
    data = plain[:]
    data[info + 4 : info + 8] = bytes(4)
    case(write("no_count.mp3", data), MP3_TOLERANCE)
    start = next(i for i in range(len(plain)) if plain[i] == 0xFF and plain[i + 1] & 0xE0 == 0xE0)
    length = 72 * 64_000 // RATE
    for bit in (8, 11, 13, 15, 17, 19, 21, 22, 25):
        data = plain[:]
        frame_start = start + 20 * length
        assert data[frame_start] == 0xFF
        data[frame_start + bit // 8] ^= 0x80 >> bit % 8
        case(write(f"header_bit_{bit}.mp3", data), MP3_TOLERANCE, seconds=3.0)
    case(write("hole.mp3", plain[: start + 20 * length] + plain[start + 21 * length :]), MP3_TOLERANCE)
    case(write("cut.mp3", plain[: len(plain) // 2 + 77]), MP3_TOLERANCE, seconds=1.46)
    tag = b"ID3\x03\0\0\0\0\x10\0" + bytes(2048)
    ape = b"APETAGEX" + struct.pack("<IIII", 2000, 32, 0, 0x80000000) + bytes(8)
    case(write("id3_before.mp3", tag + tag + plain), 32)
    case(write("tags_after.mp3", plain + ape + b"TAG" + bytes(125)), 32)
    case(write("tag_between.mp3", plain + b"TAG" + bytes(125) + tag + read("other.mp3")), 32, seconds=5.0)
    case(write("zeros_before.mp3", bytes(5000) + plain), MP3_TOLERANCE)
    case(write("zeros_after.mp3", plain + bytes(5000)), MP3_TOLERANCE)
    case(ffmpeg("layer2.mp2", "-c:a", "mp2", "-ar", "48000", "-ac", "2"), MP3_TOLERANCE)
    shutil.copy("cbr.mp3", "named.wav")
    case("named.wav", 32)


def ogg():
    for name in ["speech", "other"]:
        ffmpeg(f"{name}.ogg", "-c:a", "libvorbis", source=f"{name}.wav")
    plain = read("speech.ogg")
    case("speech.ogg", 4)
    case(write("joined.ogg", plain + read("other.ogg")), 1024, seconds=5.0)
    ffmpeg("stereo.ogg", "-c:a", "libvorbis", "-ac", "2", "-ar", "44100")
    case(write("joined_stereo.ogg", plain + read("stereo.ogg")), 1024, seconds=6.0)
    case(write("cut.ogg", plain[: len(plain) // 2]), 8192, refused=True)


def opus():
    ffmpeg("stereo48.wav", "-i", "other.wav", "-filter_complex", "[0][1]amerge", "-ar", "48000", "-ac", "2")
    ffmpeg("mono48.wav", "-ar", "48000", "-ac", "1")

    def encode(path, *arguments, source="mono48.wav", **options):
        return ffmpeg(path, "-c:a", "libopus", *arguments, source=source, **options)

    for channels in ("mono", "stereo"):
        for application in ("voip", "audio", "lowdelay"):
            for bitrate in (8, 16, 32, 128):
                for duration in ("2.5", "5", "10", "20", "40", "60"):
                    if application == "lowdelay" and duration in ("40", "60"):
                        continue
                    path = f"{channels}_{application}_{bitrate}_{duration}.opus"
                    arguments = ["-application", application, "-b:a", f"{bitrate}k", "-frame_duration", duration]
                    equal("Ogg Opus", encode(path, *arguments, source=f"{channels}48.wav"), 48_000)
    # As WhatsApp and MediaRecorder write them, and with lost packets.
    equal("Ogg Opus", encode("whatsapp.ogg", "-b:a", "16k", "-application", "voip", "-ar", "16000"), 48_000)
    equal("Ogg Opus", encode("fec.opus", "-fec", "1", "-packet_loss", "20", "-b:a", "24k"), 48_000)
    equal("Ogg Opus", encode("cut.opus", "-t", "0.3"), 48_000)
    padding = 60 * 48
    equal("WebM Opus", encode("plain.webm"), 48_000, padding)
    equal("WebM Opus", encode("live.webm", "-live", "1", "-cluster_time_limit", "500"), 48_000, padding)
    with open("mono48.wav", "rb") as file:
        command = ["ffmpeg", "-v", "error", "-i", "-", "-c:a", "libopus", "-f", "webm", "-"]
        piped = run(*command, stdin=file)
    equal("WebM Opus", write("piped.webm", piped), 48_000, padding)
    equal("Matroska Opus", encode("plain.mka", "-b:a", "24k"), 48_000, padding)
    equal("MP4 Opus", encode("plain.mp4"), 48_000, padding)
    equal("MP4 Opus", encode("fragments.mp4", "-movflags", "frag_keyframe+delay_moov"), 48_000, padding)
    case(encode("surround.opus", "-ac", "6", "-mapping_family", "1"), 4)
    case(write("chained.opus", read("mono_voip_16_20.opus") + read("stereo_audio_32_20.opus")), 700, seconds=5.0)
    data = read("mono_audio_32_20.opus")
    case(write("half.opus", data[: len(data) // 2]), 48_000)
    # Twice the amplitude, by the gain of the header.
    gain = read("whatsapp.ogg")
    gain[gain.find(b"OpusHead") + 16 : gain.find(b"OpusHead") + 18] = struct.pack("<h", 1541)
    equal("Ogg Opus", write("gain.opus", with_checksum(gain)), 48_000)
    if shutil.which("opusenc"):
        for arguments in (["--bitrate", "12", "--speech"], ["--bitrate", "96", "--music", "--framesize", "60"]):
            path = f"opusenc_{arguments[1]}.opus"
            run("opusenc", "--quiet", *arguments, "mono48.wav", path)
            equal("Ogg Opus", path, 48_000)


def with_checksum(data):
    """Corrects the checksum of the first page of an Ogg file."""
    end = 27 + data[26] + sum(data[27 : 27 + data[26]])
    data[22:26] = bytes(4)
    checksum = 0
    for byte in data[:end]:
        checksum ^= byte << 24
        for _ in range(8):
            checksum = (checksum << 1) ^ (0x104C11DB7 if checksum >> 31 else 0)
    data[22:26] = struct.pack("<I", checksum)
    return data


def mp4():
    padding = 2048  # The encoder's padding at the end may be included or not.
    case(ffmpeg("aac.m4a"), padding, seconds=3.0)
    case(ffmpeg("aac_44.m4a", "-ar", "44100", "-ac", "2"), padding, seconds=3.0)
    case(ffmpeg("moov_first.m4a", "-movflags", "faststart"), padding, seconds=3.0)
    case(ffmpeg("fragmented.m4a", "-movflags", "frag_keyframe+empty_moov", "-frag_duration", "500000"), padding)
    case(ffmpeg("fragmented_delay.m4a", "-movflags", "frag_keyframe+delay_moov"), padding)
    case(ffmpeg("no_edits.m4a", "-use_editlist", "0"), padding)
    case(ffmpeg("cut_by_edits.m4a", "-c", "copy", source="aac_44.m4a", before=("-ss", "1.01")), padding, seconds=1.99)
    case(ffmpeg("cut_end.m4a", "-c", "copy", "-t", "1.5", source="aac_44.m4a"), padding)
    case(ffmpeg("late.m4a", "-c", "copy", source="aac.m4a", before=("-itsoffset", "0.7")), padding)
    case(write("cut.m4a", read("moov_first.m4a")[:-9000]), padding, refused=True)
    case(ffmpeg("speech.aac"), padding)
    case(write("joined.aac", read("speech.aac") * 2), 2 * padding)
    for name, arguments in [("16", ["-sample_fmt", "s16p"]), ("24", ["-sample_fmt", "s32p"]), ("stereo", ["-ac", "2"])]:
        equal("MP4 ALAC", ffmpeg(f"alac_{name}.m4a", "-c:a", "alac", *arguments))
        equal("CAF ALAC", ffmpeg(f"alac_{name}.caf", "-c:a", "alac", *arguments))
    case(ffmpeg("alac_44.m4a", "-c:a", "alac", "-ar", "44100"), 8)


def matroska():
    for codec in ("flac", "libvorbis", "libmp3lame", "aac", "mp2"):
        case(ffmpeg(f"{codec}.mka", "-c:a", codec), MP3_TOLERANCE)
    equal("Matroska FLAC", "flac.mka")
    equal("Matroska PCM", ffmpeg("pcm.mka", "-c:a", "pcm_s24le"))
    equal("QuickTime PCM", ffmpeg("pcm.mov", "-c:a", "pcm_s16le"))
    equal("Matroska ALAC", ffmpeg("alac.mka", "-c:a", "alac"))
    video = ["-f", "lavfi", "-i", "color=size=32x32:duration=3", "-c:v", "libvpx", "-c:a", "libvorbis"]
    case(ffmpeg("video.webm", *video), MP3_TOLERANCE)


def uncompressed():
    """AIFF, AIFF-C, AU and CAF, from ffmpeg and sox."""
    samples = {"s8": "pcm_s8", "16": "pcm_s16be", "24": "pcm_s24be", "32": "pcm_s32be", "f32": "pcm_f32be"}
    samples.update({"f64": "pcm_f64be", "alaw": "pcm_alaw", "mulaw": "pcm_mulaw"})
    for name, codec in samples.items():
        for extension, kind in (("aiff", "AIFF"), ("au", "AU"), ("caf", "CAF")):
            equal(kind, ffmpeg(f"{name}.{extension}", "-c:a", codec))
    equal("AIFF", ffmpeg("sowt.aiff", "-c:a", "pcm_s16le"))
    equal("AIFF", ffmpeg("stereo.aif", "-ac", "2", "-ar", "44100"), 44_100)
    equal("AU", ffmpeg("stereo.au", "-ac", "2", "-ar", "8000"), 8_000)
    equal("CAF", ffmpeg("little_endian.caf", "-c:a", "pcm_s24le", "-ac", "2"))
    for name, arguments in [("sox.aifc", ["-b", "24"]), ("sox.aiff", ["-b", "8"]), ("sox.snd", ["-e", "mu-law"])]:
        run("sox", "speech.wav", *arguments, name)
        equal(name[4:].upper(), name)
    run("sox", "speech.wav", "-t", "au", "sox_pipe.au")
    piped = read("sox_pipe.au")
    piped[8:12] = b"\xff" * 4
    equal("AU", write("sox_pipe.au", piped))
    with open("speech.wav", "rb") as file:
        piped = run("ffmpeg", "-v", "error", "-i", "-", "-f", "caf", "-", stdin=file)
    equal("CAF", write("ffmpeg_pipe.caf", piped))
    for extension in ("aiff", "au", "caf"):
        case(write(f"cut.{extension}", read(f"16.{extension}")[:-9001]), refused=True)
    case(ffmpeg("ima4.aifc", "-c:a", "adpcm_ima_qt"), refused=True)
    two = read("speech.wav") + b"data" + struct.pack("<I", 32_000) + bytes(32_000)
    case(write("two_data_chunks.wav", two), seconds=4.0)  # ffmpeg 5 reads only the second.


def other():
    for name, arguments in [("ac3.mka", ["-c:a", "ac3", "-ar", "48000"]), ("ac3.ac3", ["-ar", "48000"])]:
        case(ffmpeg(name, *arguments), refused=True)
    case(ffmpeg("speech.ts", "-c:a", "mp2", "-ar", "48000"), refused=True)
    case(ffmpeg("speech.flv", "-c:a", "libmp3lame", "-ar", "44100"), refused=True)
    case(ffmpeg("speech.avi"), refused=True)
    case(ffmpeg("speech.wma"), refused=True)
    case(write("text.wav", b"this is a text and not audio at all\n" * 40), refused=True)
    case(write("zeros.mp3", bytes(100_000)), refused=True)


def ffmpeg_samples(path):
    """Returns the number of samples from ffmpeg and the share of their power in the second half."""
    command = ["ffmpeg", "-v", "quiet", "-nostdin", "-i", path, "-f", "f32le", "-ac", "1", "-ar", str(RATE), "-"]
    data = subprocess.run(command, capture_output=True, check=False).stdout
    samples = array.array("f", data[: len(data) // 4 * 4])
    second = sum(s * s for s in samples[len(samples) // 2 :])
    return len(samples), second / max(sum(s * s for s in samples), 1e-9)


def compare_samples(program):
    """Compares all samples with those of ffmpeg."""
    failed, largest, counts = 0, {}, {}
    for kind, path, rate, extra in exact:
        line = run(program, "--write", str(rate), path).decode().strip()
        if "\trefused\t" in line:
            failed += 1
            print(f"FAILED {line}")
            continue
        actual = array.array("f", read(f"{path}.f32"))
        decoder = ["-c:a", "libopus"] if "Opus" in kind else []
        # Without the option, the mean of two channels is louder.
        mean = ["-f", "f32le", "-ac", "1", "-rematrix_maxval", "1", "-ar", str(rate), "-"]
        expected = array.array("f", run("ffmpeg", "-v", "error", "-nostdin", *decoder, "-i", path, *mean))
        difference = max((abs(a - e) for a, e in zip(actual, expected)), default=1.0)
        largest[kind] = max(largest.get(kind, 0.0), difference)
        counts[kind] = counts.get(kind, 0) + 1
        if difference > MAX_DIFFERENCE or abs(len(actual) - len(expected)) > extra:
            failed += 1
            print(f"FAILED {path}: {len(actual)} samples of {len(expected)}, which differ by {difference:.6f}")
    for kind, difference in largest.items():
        print(f"{kind}: {counts[kind]} files, largest difference {difference:.7f}")
    return failed == 0


def compare(decoded):
    failed = read_files = 0
    for path, tolerance, seconds, may_be_refused in cases:
        number, message = decoded[path]
        expected, share = ffmpeg_samples(path)
        if seconds is not None:
            expected = round(seconds * RATE)
        if number == "refused":
            passed = may_be_refused and message.startswith(path) and len(message) < 300
        else:
            read_files += 1
            same_length = abs(int(number) - expected) <= tolerance
            # If ffmpeg's length is wrong, its second half has other audio.
            same_audio = seconds is not None or abs(float(message) - share) < 0.02
            passed = same_length and same_audio
        if not passed:
            failed += 1
            print(f"FAILED {path}: {number} {message}; expected {expected} {share:.4f}")
    print(f"{len(cases)} files: {read_files} read, {len(cases) - read_files} refused, {failed} failed")
    return failed == 0 and len(cases) >= 60


def main():
    program = os.path.abspath(sys.argv[1])
    missing = [tool for tool in ("ffmpeg", "sox") if not shutil.which(tool)]
    if missing:
        print(f"SKIPPED: the matrix of audio files needs {' and '.join(missing)} (apt-get install ffmpeg sox)")
        return
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_speech()
        for kind in (wav, flac, mp3, ogg, opus, mp4, matroska, uncompressed, other):
            kind()
        lines = run(program, *(path for path, *_ in cases)).decode().splitlines()
        decoded = {path: (number, message) for path, number, message in (line.split("\t", 2) for line in lines)}
        if os.environ.get("KEEP"):
            shutil.copytree(folder, os.environ["KEEP"], dirs_exist_ok=True)
        if len(decoded) != len(cases):
            sys.exit(f"{len(cases)} files, but {len(decoded)} lines of output")
        same_samples = compare_samples(program)
        if not compare(decoded) or not same_samples:
            sys.exit(1)
        os.chdir("/")


main()
