// kafkajs has gzip; the other codecs are plug-ins. These need no compiler on the machine.
// (lz4js would not do: it writes frames of dependent blocks, which Kafka's Java client refuses.)
'use strict'

const { CompressionCodecs, CompressionTypes } = require('kafkajs')
const SnappyCodec = require('kafkajs-snappy')
const lz4 = require('lz4-napi')
const zstd = require('@bokuweb/zstd-wasm')

const ZSTD_OUTPUT_BYTES_MAX = 4 * 1024 * 1024 // Used for frames that do not tell their size; a batch is about 1 MB.

async function register() {
  await zstd.init()
  CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec
  CompressionCodecs[CompressionTypes.LZ4] = () => ({
    compress: async (encoder) => lz4.compressFrame(encoder.buffer),
    decompress: async (buffer) => lz4.decompressFrame(buffer),
  })
  CompressionCodecs[CompressionTypes.ZSTD] = () => ({
    compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer)),
    decompress: async (buffer) => Buffer.from(zstd.decompress(buffer, { defaultHeapSize: ZSTD_OUTPUT_BYTES_MAX })),
  })
}

const TYPES = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}

module.exports = { register, TYPES }
