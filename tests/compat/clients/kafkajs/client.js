// kafkajs: node client.js BOOTSTRAP JOB_FILE. The jobs are described in clients/python/job_loop.py.
'use strict'

const fs = require('fs')
const { Kafka, logLevel } = require('kafkajs')
const Batch = require('kafkajs/src/consumer/batch')
const codecs = require('./codecs')
const { readRecords, writeRecords } = require('./record_file')

const IDLE_MS_MAX = 20_000
const CHUNK_BYTES_MAX = 60_000 // kafkajs makes one batch per partition of what one send() is given.

const [bootstrap, jobFile] = process.argv.slice(2)
const brokers = bootstrap.split(',')
const kafka = new Kafka({ clientId: 'compat', brokers, logLevel: logLevel.WARN, retry: { retries: 3 } })

function* chunks(records) {
  let chunk = []
  let size = 0
  for (const record of records) {
    const recordSize = (record.key?.length ?? 0) + (record.value?.length ?? 0)
    if (chunk.length > 0 && size + recordSize > CHUNK_BYTES_MAX) {
      yield chunk
      chunk = []
      size = 0
    }
    chunk.push(record)
    size += recordSize
  }
  if (chunk.length > 0) yield chunk
}

function headerMap(headers) {
  const map = {}
  for (const [name, value] of headers) (map[name] ??= []).push(value)
  return map
}

async function produce(topic, codec, path) {
  const producer = kafka.producer({ idempotent: false, allowAutoTopicCreation: false })
  await producer.connect()
  for (const chunk of chunks(readRecords(path))) {
    const messages = chunk.map((record) => ({
      partition: record.partition,
      key: record.key,
      value: record.value,
      headers: headerMap(record.headers),
      timestamp: record.timestamp.toString(),
    }))
    await producer.send({ topic, messages, acks: -1, compression: codecs.TYPES[codec] })
  }
  await producer.disconnect()
}

// kafkajs's consumer always joins a group. What it fetches and decodes with lies below that, in Cluster and Broker.
function createCluster() {
  const symbols = Object.getOwnPropertySymbols(kafka)
  return kafka[symbols.find((symbol) => symbol.description === 'private:Kafka:createCluster')]({
    metadataMaxAge: 300_000,
    allowAutoTopicCreation: false,
  })
}

async function endOffsets(topic) {
  const admin = kafka.admin()
  await admin.connect()
  const offsets = await admin.fetchTopicOffsets(topic)
  await admin.disconnect()
  return new Map(offsets.map(({ partition, high }) => [partition, BigInt(high)]))
}

async function consume(topic, partitionCount, path) {
  const ends = await endOffsets(topic)
  const cluster = createCluster()
  await cluster.connect()
  await cluster.addTargetTopic(topic)
  const records = []
  for (let partition = 0; partition < Number(partitionCount); partition++) {
    const [nodeId] = Object.keys(cluster.findLeaderForPartitions(topic, [partition]))
    const broker = await cluster.findBroker({ nodeId })
    let next = 0n
    let lastProgress = Date.now()
    while (next < ends.get(partition)) {
      const { responses } = await broker.fetch({
        topics: [{ topic, partitions: [{ partition, fetchOffset: next.toString(), maxBytes: 1_048_576 }] }],
        maxWaitTime: 1000,
      })
      for (const response of responses) {
        for (const data of response.partitions) {
          for (const message of new Batch(topic, next.toString(), data).messages) {
            records.push(toRecord(partition, message))
            next = BigInt(message.offset) + 1n
            lastProgress = Date.now()
          }
        }
      }
      if (Date.now() - lastProgress > IDLE_MS_MAX) {
        throw new Error(`nothing more at ${topic}-${partition} offset ${next}, the end is ${ends.get(partition)}`)
      }
    }
  }
  await cluster.disconnect()
  writeRecords(path, records) // One partition after the other: already in log order.
}

function toRecord(partition, message) {
  const headers = Object.entries(message.headers).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value]).map((one) => [name, one])
  )
  return {
    partition,
    offset: BigInt(message.offset),
    timestamp: BigInt(message.timestamp),
    key: message.key,
    value: message.value,
    headers,
  }
}

async function list(path) {
  const admin = kafka.admin()
  await admin.connect()
  const { topics } = await admin.fetchTopicMetadata()
  await admin.disconnect()
  const lines = topics.map(({ name, partitions }) => `${name}\t${partitions.length}\n`).sort()
  fs.writeFileSync(path, lines.join(''))
}

async function main() {
  await codecs.register()
  for (const line of fs.readFileSync(jobFile, 'utf8').split('\n').filter(Boolean)) {
    const [verb, ...parameters] = line.split('\t')
    try {
      await { produce, consume, list }[verb](...parameters)
      console.log('ok')
    } catch (error) {
      console.error(error)
      console.log(`FAILED ${error.name} ${String(error.message).replace(/\s+/g, ' ')}`)
    }
  }
}

// A job that failed may have left a connection open, which would keep the process alive.
main().then(() => process.exit(0))
