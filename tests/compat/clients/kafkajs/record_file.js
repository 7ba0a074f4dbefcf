// The record file of clients/python/record_file.py, for Node.
'use strict'

const fs = require('fs')

function readRecords(path) {
  const data = fs.readFileSync(path)
  const records = []
  let position = 0
  const int32 = () => data.readInt32BE((position += 4) - 4)
  const int64 = () => data.readBigInt64BE((position += 8) - 8)
  const bytes = () => {
    const length = int32()
    return length < 0 ? null : data.subarray(position, (position += length))
  }
  while (position < data.length) {
    const record = { partition: int32(), offset: int64(), timestamp: int64(), key: bytes(), value: bytes(), headers: [] }
    for (let count = int32(); count > 0; count--) {
      record.headers.push([bytes().toString('utf8'), bytes()])
    }
    records.push(record)
  }
  return records
}

function writeRecords(path, records) {
  const parts = []
  const int32 = (value) => {
    const buffer = Buffer.allocUnsafe(4)
    buffer.writeInt32BE(value)
    parts.push(buffer)
  }
  const int64 = (value) => {
    const buffer = Buffer.allocUnsafe(8)
    buffer.writeBigInt64BE(value)
    parts.push(buffer)
  }
  const bytes = (value) => {
    int32(value === null ? -1 : value.length)
    if (value !== null) parts.push(value)
  }
  for (const record of records) {
    int32(record.partition)
    int64(record.offset)
    int64(record.timestamp)
    bytes(record.key)
    bytes(record.value)
    int32(record.headers.length)
    for (const [name, value] of record.headers) {
      bytes(Buffer.from(name, 'utf8'))
      bytes(value)
    }
  }
  fs.writeFileSync(path, Buffer.concat(parts))
}

module.exports = { readRecords, writeRecords }
